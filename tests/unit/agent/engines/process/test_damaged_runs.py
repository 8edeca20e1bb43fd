"""One run whose files are damaged, unreadable or cannot be removed: the others and the agent go on."""

import errno
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import Driver
from trainyard_agent.host import process_tags
from trainyard_agent.host.files import read_json
from trainyard_agent.runtimes import run_directories
from trainyard_protocol.states import Reason, ReplicaState
from unit.agent.shells import RUN, TASK, start

OTHER = unique_run("2")
DAMAGES = ("", "\0\0\0", "[]", "{}", '{"time": 1')


def up(driver: Driver, run_id: str) -> bool:
    return driver.texts(run_id, TASK) == ["up"]


def test_notes_of_a_replica_that_are_damaged_count_as_absent(
    driver: Driver, runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A replica without exit.json has ended as after the kill of its supervisor."""
    start(driver, "echo up; exit 4")
    driver.wait_for_log(RUN, TASK)
    found = []
    for name in ("started.json", "exit.json"):
        for damage in DAMAGES:
            (runs / RUN / TASK / name).write_text(damage)
            driver.lab.reopen()
            ended = driver.end(RUN, TASK)
            found.append((name, driver.reports(RUN)[TASK].started_at, ended.code, ended.reason))
            driver.lab.reopen()
            assert driver.end(RUN, TASK) == ended
    assert found == [
        *[("started.json", None, 4, Reason.PROGRAM_ERROR)] * len(DAMAGES),
        *[("exit.json", None, None, Reason.VANISHED)] * len(DAMAGES),
    ]
    assert driver.wait_for_log(RUN, TASK) == ["up"]
    assert caplog.text.count("exit.json is ignored") == len(DAMAGES)


@pytest.mark.parametrize("damage", ["", "{}"])
def test_stop_order_that_is_damaged_is_to_the_supervisor_as_any_sigterm(
    driver: Driver, runs: Path, damage: str
) -> None:
    start(driver, "echo up; exec sleep 1000")
    driver.until(partial(up, driver, RUN))
    (runs / RUN / "stop.json").write_text(damage)
    os.kill((read_json(runs / RUN / "run.json") or {})["pids"][TASK], signal.SIGTERM)
    ended = driver.end(RUN, TASK)
    assert (ended.code, ended.reason, ended.after_stop) == (143, Reason.KILLED_BY_SIGNAL, False)


def test_recover_with_one_damaged_run_finds_the_others(
    driver: Driver, runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(driver, "echo up; exec sleep 1000", OTHER)
    for damage in DAMAGES:
        start(driver, "echo up; exec sleep 1000")
        driver.until(partial(up, driver, RUN))
        (runs / RUN / "run.json").write_text(damage)
        assert [handle.run_id for handle in driver.lab.reopen().recover()] == [OTHER]
        assert (driver.runtime.observe(RUN), driver.lab.remaining(RUN)) == ((), [])
    assert driver.reports(OTHER)[TASK].state is ReplicaState.RUNNING
    assert caplog.text.count("run.json is ignored") == len(DAMAGES)


def test_recover_with_one_unreadable_run_finds_the_others_and_keeps_it(
    driver: Driver, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id in (RUN, OTHER):
        start(driver, "echo up; exec sleep 1000", run_id)
        driver.until(partial(up, driver, run_id))

    def fail(path: Path) -> dict[str, Any] | None:
        if RUN in path.parts:
            raise OSError(errno.EIO, "Input/output error")
        return read_json(path)

    with monkeypatch.context() as broken:
        broken.setattr(run_directories, "read_json", fail)
        assert [handle.run_id for handle in driver.lab.reopen().recover()] == [OTHER]

    assert [handle.run_id for handle in driver.lab.reopen().recover()] == [RUN, OTHER]
    assert driver.reports(RUN)[TASK].state is ReplicaState.RUNNING


def test_program_that_removes_its_directory_is_ended_and_counts_as_vanished(driver: Driver) -> None:
    start(driver, 'echo up; rm -rf "${PWD%/work}"; sleep 1000')
    ended = driver.end(RUN, TASK)
    assert (ended.code, ended.reason) == (None, Reason.VANISHED)
    driver.until(lambda: not process_tags.tagged(RUN))
