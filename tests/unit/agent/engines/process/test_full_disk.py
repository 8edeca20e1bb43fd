"""A disk that takes nothing: programs go on, nothing that happened is lost, and a stop is still a stop."""

import errno
import os
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import Driver
from trainyard_agent.engines.process import runtime
from trainyard_agent.host import process_tags
from trainyard_agent.host.files import read_json, write_json, write_private
from trainyard_agent.runtimes import fork_server, supervisor
from trainyard_agent.runtimes.base import Launch, StartFailed
from trainyard_agent.runtimes.fork_server import Forked, ForkServer
from trainyard_protocol.states import Reason, ReplicaState
from unit.agent.shells import RUN, TASK, start

OTHER = unique_run("2")


class FullDisk:
    """The supervisors that start under it can write to no file: neither notes nor log nor their own words."""

    def __init__(self, driver: Driver, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._runs = runs
        spawn = driver.runtime._spawn  # type: ignore[attr-defined]

        def spawn_without_room(directory: Path, launch: Launch) -> Forked:
            (directory / "supervisor.err").symlink_to("/dev/full")
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
            server = ForkServer()  # which inherits the limit
            try:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(fork_server, "SHARED", server)
                    supervisor: Forked = spawn(directory, launch)
                return supervisor
            finally:
                server.close()
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        monkeypatch.setattr(driver.runtime, "_spawn", spawn_without_room)

    def is_freed(self) -> None:
        supervisor = (read_json(self._runs / RUN / "run.json") or {})["pids"][TASK]
        _, hard = resource.prlimit(supervisor, resource.RLIMIT_FSIZE)
        resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (hard, hard))


@pytest.fixture
def full_disk(driver: Driver, runs: Path, monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(driver, runs, monkeypatch)


def running(driver: Driver, run_id: str) -> bool:
    return driver.reports(run_id)[TASK].state is ReplicaState.RUNNING


def refuse(monkeypatch: pytest.MonkeyPatch, refuses: Callable[[Path], bool]) -> None:
    """A full disk for the agent's own writes to paths that `refuses` selects."""

    def unless_full(write: Callable[..., None]) -> Callable[..., None]:
        def write_if_allowed(path: Path, *arguments: object, **options: object) -> None:
            if refuses(path):
                raise OSError(errno.ENOSPC, "No space left on device")
            write(path, *arguments, **options)

        return write_if_allowed

    for write in (write_json, write_private):
        monkeypatch.setattr(runtime, write.__name__, unless_full(write))


def test_supervisor_on_a_full_disk_tells_all_once_there_is_room(
    driver: Driver, full_disk: FullDisk, tmp_path: Path
) -> None:
    """Its log also while its program is silent."""
    marker = tmp_path / "ran"
    start(driver, f"echo up; touch {marker}; while [ ! -e {marker}.go ]; do sleep 0.01; done; exit 3")
    driver.until(marker.exists)
    assert (driver.texts(RUN, TASK), driver.reports(RUN)[TASK].state) == ([], ReplicaState.STARTING)

    full_disk.is_freed()

    driver.until(lambda: driver.texts(RUN, TASK) == ["up"] and running(driver, RUN))
    marker.with_name("ran.go").touch()
    ended = driver.end(RUN, TASK)
    assert (ended.code, ended.reason) == (3, Reason.PROGRAM_ERROR)
    assert driver.wait_for_log(RUN, TASK) == ["up"]


def test_stop_on_a_full_disk_ends_the_program(
    driver: Driver, full_disk: FullDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "ran"
    start(driver, f"touch {marker}; exec sleep 1000")
    driver.until(marker.exists)
    refuse(monkeypatch, lambda path: True)

    driver.runtime.stop(RUN, 5.0)

    driver.until(lambda: not process_tags.tagged(RUN))
    full_disk.is_freed()
    assert driver.wait_for_exits(RUN)[TASK].exit is not None


def test_start_on_a_full_disk_is_the_fault_of_the_machine(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, lambda path: path.name == "launch.json")

    with pytest.raises(StartFailed, match="No space left") as failure:
        start(driver, "true")

    assert failure.value.reason is Reason.HOST_FAILED
    assert driver.lab.remaining(RUN) == []


def test_exit_of_a_killed_supervisor_on_a_full_disk_is_recorded_later(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for run_id in (RUN, OTHER):
        start(driver, "echo up; exec sleep 1000", run_id)
        driver.until(partial(running, driver, run_id))
    with monkeypatch.context() as full:
        refuse(full, lambda path: RUN in path.parts)
        driver.lab.kill_supervisor(RUN, TASK)
        driver.until(lambda: driver.reports(RUN) and "cannot be recorded yet" in caplog.text)

        assert driver.reports(RUN)[TASK].exit is None
        assert not driver.runtime.has_ended(RUN)
        assert driver.reports(OTHER)[TASK].state is ReplicaState.RUNNING

    ended = driver.end(RUN, TASK)
    assert ended.reason is Reason.VANISHED
    assert driver.wait_for_log(RUN, TASK) == ["up"]


def test_note_of_the_end_on_a_full_disk_takes_the_place_of_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, reserve = supervisor.ExitFiles(str(tmp_path)), tmp_path / supervisor.RESERVE
    replace = os.replace

    def full(source: str, target: str) -> None:
        if reserve.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)

    notes.add("started.json", {"pid": 1}, vital=False)
    assert notes.pending
    assert reserve.exists()

    notes.add("exit.json", {"status": 0})
    assert not notes.pending
    assert (read_json(tmp_path / "started.json"), read_json(tmp_path / "exit.json")) == ({"pid": 1}, {"status": 0})


def test_note_of_the_end_is_on_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, steps = supervisor.ExitFiles(str(tmp_path)), []
    fsync, replace = os.fsync, os.replace

    def note_fsync(fd: int) -> None:
        steps.append(("fsync", os.fstat(fd).st_size))
        fsync(fd)

    def note_replace(source: str, target: str) -> None:
        steps.append(("replace", Path(source).stat().st_size))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    notes.add("exit.json", {"status": 0})

    assert steps == [("fsync", 13), ("replace", 13)]
