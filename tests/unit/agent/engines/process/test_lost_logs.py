"""Logs that somebody removes or changes under the agent: what was lost is never passed over in silence."""

import os
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from contract.runtimes.runtime_labs import Driver, ProcessLab
from trainyard_agent.host import process_tags
from trainyard_agent.runtimes.base import Launch, LogSlice

TASK = "master-replica-0"
LINES = [f"line {number}" for number in range(8)]
WRITER = """
import os, sys, time
def when(name):
    while not os.path.exists(f"{sys.argv[1]}/{name}"):
        time.sleep(0.01)
when("first")
for number in range(5):
    print("line", number, flush=True)
when("second")
for number in range(5, 8):
    print("line", number, flush=True)
"""


def truncate(log: Path) -> None:
    os.truncate(log, 0)


def replace(log: Path) -> None:
    """Put a longer file in its place."""
    log.rename(log.with_name("former"))
    log.write_text('{"time": "2026-01-01T00:00:00Z", "stream": "stdout", "text": "not of this program"}\n' * 20)


def replaced_by_directory(log: Path) -> None:
    log.unlink()
    log.mkdir()


def replaced_by_link(log: Path) -> None:
    replace(log)
    log.rename(log.with_name("other"))
    log.symlink_to(log.with_name("other"))


def replaced_by_pipe(log: Path) -> None:
    log.unlink()
    os.mkfifo(log)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "its run's directory removed": lambda log: shutil.rmtree(log.parent.parent),
    "its directory removed": lambda log: shutil.rmtree(log.parent),
    "removed": Path.unlink,
    "truncated": truncate,
    "replaced": replace,
    "a directory": replaced_by_directory,
    "a link": replaced_by_link,
    "a pipe": replaced_by_pipe,
}
MOMENTS = ("before its first line", "amid", "after its end", "amid, and its supervisor is killed")


class Reader:
    """An agent that delivers a log."""

    def __init__(self, driver: Driver, run_id: str) -> None:
        self._driver, self._run_id = driver, run_id
        self.lines: list[str] = []

    def read(self, most: int = 100) -> LogSlice:
        self._driver.runtime.observe(self._run_id)
        found = self._driver.runtime.read_log(self._run_id, TASK, len(self.lines), most, 1 << 20)
        self.lines += [line.text for line in found.lines]
        return found


def loss(driver: Driver, moment: str, damage: Callable[[Path], None], scratch: Path) -> str:
    """Damage a log at a moment. Returns the problem, if its end does not tell what it lacks; else ""."""
    run_id = uuid.uuid4().hex
    scratch.mkdir()
    driver.place(run_id, TASK)
    command = (sys.executable, "-c", WRITER, str(scratch))
    driver.runtime.start(run_id, [Launch(TASK, command, {}, (), 0)])
    directory = scratch.parent / "state" / "runs" / run_id / TASK
    reader = Reader(driver, run_id)
    driver.until(lambda: process_tags.tagged(run_id) and (directory / "log.jsonl").exists())
    if not moment.startswith("before"):
        (scratch / "first").touch()
        driver.until(lambda: reader.read(5 - len(reader.lines)) and len(reader.lines) == 5)
    if moment == "after its end":
        (scratch / "second").touch()
        driver.until((directory / "done.json").exists)
    supervisor = driver.lab.supervisor(run_id, TASK) if "killed" in moment else None  # type: ignore[attr-defined]
    damage(directory / "log.jsonl")
    (scratch / "first").touch()
    (scratch / "second").touch()
    if supervisor is not None:
        supervisor.kill()
    last = LogSlice((), complete=False)

    def is_complete() -> bool:
        nonlocal last
        last = reader.read()
        return last.complete

    driver.until(is_complete)
    driver.runtime.remove(run_id)
    wrong = "" if last.missing is None or len(reader.lines) + last.missing >= len(LINES) else "its loss is not told"
    if reader.lines == LINES and last.missing == 0:
        wrong = ""
    return f"{moment}: {wrong} ({reader.lines}, missing {last.missing})" if wrong else ""


def test_log_that_was_removed_or_changed_says_what_it_lacks(tmp_path: Path) -> None:
    wrong = []
    with ProcessLab(tmp_path / "state").driven() as driver:
        for moment in MOMENTS:
            for number, (name, damage) in enumerate(DAMAGES.items()):
                if moment != "amid" and name not in ("its directory removed", "truncated", "replaced"):
                    continue
                try:
                    problem = loss(driver, moment, damage, tmp_path / f"{MOMENTS.index(moment)}-{number}")
                except (AssertionError, OSError) as error:
                    problem = f"{moment}: {error!r}"
                wrong += [f"{name}, {problem}"] if problem else []
    assert not wrong, "\n".join(wrong)
