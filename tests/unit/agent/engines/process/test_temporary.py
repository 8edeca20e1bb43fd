"""Temporary directories of replicas: short, for their user alone, and removed whatever becomes of the agent."""

import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from contract.runtimes.runtime_labs import Driver, ProcessLab
from trainyard_agent.engines.process.temporary import TemporaryDirectories
from trainyard_agent.host import temporary
from trainyard_agent.runtimes.base import Launch
from trainyard_protocol.wire.sync import ExitReport
from unit.agent.shells import RUN, TASK, start

SOCKETS = """
import multiprocessing, os, socket, tempfile

def square(number):
    return number * number

if __name__ == "__main__":
    shared = multiprocessing.Manager().list()
    shared.append(1)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(list(shared), pool.map(square, [1, 2, 3]))
    path = os.path.join(tempfile.mkdtemp(prefix="a-program-of-somebody-"), "control.sock")
    socket.socket(socket.AF_UNIX).bind(path)
    print(oct(os.stat(tempfile.gettempdir()).st_mode), len(tempfile.gettempdir()), tempfile.gettempdir())
"""


def run(driver: Driver, program: Path, environment: Mapping[str, str] | None = None) -> tuple[list[str], ExitReport]:
    """The lines of a Python program, and its end."""
    driver.place(RUN, TASK)
    driver.runtime.start(RUN, [Launch(TASK, (sys.executable, str(program)), environment or {}, (), 0)])
    ended = driver.end(RUN, TASK)
    return driver.wait_for_log(RUN, TASK), ended


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of the agent that is far too long."""
    directory = tmp_path / ("long" * 20)
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.mark.usefixtures("deep")
def test_program_makes_unix_sockets_in_its_temporary_directory(driver: Driver, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SOCKETS)

    (results, place), ended = run(driver, program)

    assert (ended.code, results) == (0, "[1] [1, 4, 9]")
    mode, length, path = place.split()
    assert mode == "0o40700"
    assert int(length) <= temporary.LONGEST
    driver.runtime.remove(RUN)
    assert not Path(path).exists()

    program.write_text("import tempfile; print(tempfile.gettempdir())")
    assert run(driver, program, {"TMPDIR": str(tmp_path)})[0] == [str(tmp_path)], "the job's own, if it has one"


def place(driver: Driver, script: str, run_id: str = RUN) -> Path:
    """Start a program, and return its temporary directory."""
    start(driver, f"echo $TMPDIR; {script}", run_id)
    driver.until(lambda: driver.texts(run_id, TASK))
    return Path(driver.texts(run_id, TASK)[0])


def test_next_agent_removes_what_its_runs_have_left_and_nothing_of_others(driver: Driver, tmp_path: Path) -> None:
    with ProcessLab(tmp_path / "other").driven() as other:
        kept = place(other, "exec sleep 1000")
        mine = place(driver, "mkdir $TMPDIR/shut; touch $TMPDIR/shut/file; chmod 0 $TMPDIR/shut; exec sleep 1000")
        # Somebody removes the run's directory beside its agent, which is killed.
        (tmp_path / "state" / "runs" / RUN).rename(tmp_path / "gone")

        driver.lab.reopen().recover()

        assert (mine.exists(), kept.is_dir()) == (False, True)
        assert list((tmp_path / "state" / "temporary").iterdir()) == []


def test_what_is_in_the_place_of_a_directory_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    directories = TemporaryDirectories(tmp_path / "state")
    directories.make(RUN, [TASK], None)
    path = directories.of(RUN, TASK)
    assert path is not None
    path.rmdir()
    path.symlink_to(tmp_path / "precious")

    directories.remove(RUN)

    assert (tmp_path / "precious" / "file").exists()
    path.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives users")
def test_directory_belongs_to_the_user_of_its_run_and_no_other_ones_is_removed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    directories = TemporaryDirectories(tmp_path / "state")
    directories.make(RUN, [TASK], 300_001)
    path = directories.of(RUN, TASK)
    assert path is not None
    status = path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (300_001, 300_001, 0o700)
    os.chown(path, 300_002, 300_002)

    directories.remove(RUN)

    assert path.is_dir()
    path.rmdir()


def test_name_that_is_taken_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["taken", "taken", "free"])
    monkeypatch.setattr(secrets, "token_hex", lambda _: next(tokens))
    (tmp_path / "ty-taken").symlink_to(tmp_path / "elsewhere")
    noted: list[str] = []
    assert temporary.make(str(tmp_path), noted.append) == str(tmp_path / "ty-free")
    assert noted[-1] == str(tmp_path / "ty-free")
    assert not (tmp_path / "elsewhere").exists()


def test_directories_are_where_there_is_a_short_one_that_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {
        ("/dev/shm", ""): "/dev/shm",
        ("/dev/shm", "/dev/shm"): "/tmp",
        ("/" + "x" * 29, ""): "/tmp",
        ("/nowhere", "/tmp"): "/var/tmp",
    }
    for (own, closed), expected in cases.items():
        monkeypatch.setattr(tempfile, "tempdir", own)
        assert temporary.parent(lambda path, closed=closed: path != closed) == expected, own  # type: ignore[misc]
