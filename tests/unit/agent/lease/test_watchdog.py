"""Deadline and end of the watchdog; its action is tested in tests/integration/fencing/test_fencing.py."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from beds.waiting import until
from trainyard_agent.host.files import holder, is_locked, try_lock
from trainyard_agent.lease import lease_file, watchdog_files
from trainyard_agent.lease.lease_file import Grant
from trainyard_agent.lease.watchdog_files import LeasedRun, WatchdogKeeper, due, runs_of
from trainyard_agent.main import main
from trainyard_agent.watchdog import Watchdog
from trainyard_protocol import __version__


def grant(lease_s: float, renewed_at: float, boot_id: str = "", version: str = __version__) -> Grant:
    return Grant(lease_s, renewed_at, boot_id or lease_file.boot_id(), version)


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def run(state_dir: Path, runtime: str, run_id: str, grace_s: float = 30.0, launched: bool = True) -> Path:
    """The files of a run with one replica that is alive; the replica's directory."""
    task = state_dir / runtime / run_id / "master-replica-0"
    task.mkdir(parents=True)
    addresses = dict.fromkeys((task.name, "worker-replica-0"), "host:1")
    record = {"grace_s": grace_s, "launched": launched, "addresses": addresses}
    (task.parent / "run.json").write_text(json.dumps(record))
    return task


def ended(task: Path) -> None:
    """Let the replica have ended: nobody locks its file."""
    (task / "alive").touch()


@pytest.fixture
def process_alive(tmp_path: Path) -> Iterator[Path]:
    """A replica of the process runtime whose supervisor lives."""
    task = run(tmp_path, "runs", "r1")
    lock = try_lock(task / "alive")
    assert lock is not None
    yield task
    os.close(lock)


# Deadline. The agent stops a run with a grace of 30 s at 100 + 600 - 30 - 5 = 665, and kills it at 695.


def test_watchdog_acts_for_the_run_that_needs_it_first() -> None:
    running, stopped = (LeasedRun(30.0, stop_requested=stop, ended=False) for stop in (False, True))
    over = LeasedRun(30.0, stop_requested=True, ended=True)
    short, long = (LeasedRun(grace_s, stop_requested=False, ended=False) for grace_s in (1.0, 60.0))
    table: dict[str, tuple[list[LeasedRun], float | None]] = {
        "the agent did not stop it": ([running], 667.0),
        "it was stopped, and has its grace": ([stopped], 697.0),
        "there is none": ([], None),
        "it has ended": ([over], None),
        "the longest grace": ([short, long, over], 637.0),
    }
    assert {name: (runs, due(grant(600.0, 100.0), runs)) for name, (runs, _) in table.items()} == table


@pytest.mark.parametrize("lease_s", [0.5, 4.0, 8.0, 30.0, 60.0, 600.0, 86_400.0])
@pytest.mark.parametrize("grace_s", [0.0, 2.0, 30.0, 600.0])
def test_watchdog_acts_after_the_agent_and_before_the_server(lease_s: float, grace_s: float) -> None:
    given = grant(lease_s, 0.0)
    server_at = lease_s  # the controller's deadline
    first = due(given, [LeasedRun(grace_s, stop_requested=False, ended=False)])
    last = due(given, [LeasedRun(grace_s, stop_requested=True, ended=False)])
    assert first is not None
    assert last is not None
    assert given.stop_at(grace_s) < first < server_at
    assert given.kill_at(grace_s) < last < server_at


# Runs.


def test_run_of_a_process_has_ended_once_its_supervisor_has_left(process_alive: Path, tmp_path: Path) -> None:
    assert list(runs_of(tmp_path)) == [LeasedRun(30.0, stop_requested=False, ended=False)]
    (process_alive.parent / "stop.json").write_text("{}")
    assert list(runs_of(tmp_path)) == [LeasedRun(30.0, stop_requested=True, ended=False)]
    ended(run(tmp_path, "runs", "r2", grace_s=1.0))
    assert LeasedRun(1.0, stop_requested=False, ended=True) in list(runs_of(tmp_path))


def test_run_of_containers_has_ended_once_every_exit_was_written_down(tmp_path: Path) -> None:
    task = run(tmp_path, "containers", "r1")
    (task.parent / "worker-replica-0").mkdir()
    (task.parent / "secrets").mkdir()  # no replica
    (task / "exit.json").write_text("{}")
    assert list(runs_of(tmp_path)) == [LeasedRun(30.0, stop_requested=False, ended=False)]
    (task.parent / "worker-replica-0" / "exit.json").write_text("{}")
    assert list(runs_of(tmp_path)) == [LeasedRun(30.0, stop_requested=False, ended=True)]


def test_runs_that_were_never_launched_or_are_being_removed_do_not_count(tmp_path: Path) -> None:
    for runtime in ("runs", "containers"):
        run(tmp_path, runtime, "placed", launched=False)
        run(tmp_path, runtime, ".removed-r1.123")
    assert list(runs_of(tmp_path)) == []


def test_run_whose_file_is_damaged_counts_by_what_lives_of_it(process_alive: Path, tmp_path: Path) -> None:
    (process_alive.parent / "run.json").write_text("{half")
    assert list(runs_of(tmp_path)) == [LeasedRun(0.0, stop_requested=False, ended=False)]


# End.


def watchdog_on(state_dir: Path) -> Watchdog:
    lock = try_lock(state_dir / watchdog_files.LOCK)
    assert lock is not None
    return Watchdog(state_dir, lock)


@pytest.mark.parametrize("there", [None, grant(600.0, now(), boot_id="another"), grant(600.0, now(), version="0.0.1")])
def test_watchdog_ends_where_no_lease_is_its_own(process_alive: Path, tmp_path: Path, there: Grant | None) -> None:
    if there is not None:
        lease_file.write(tmp_path / "lease.json", there)
    watchdog_on(tmp_path).watch()


def test_watchdog_ends_without_an_agent_and_without_replicas(tmp_path: Path) -> None:
    lease_file.write(tmp_path / "lease.json", grant(600.0, now()))
    ended(run(tmp_path, "runs", "r1"))
    watchdog_on(tmp_path).watch()


def test_watchdog_of_a_directory_that_was_made_anew_ends(process_alive: Path, tmp_path: Path) -> None:
    lease_file.write(tmp_path / "lease.json", grant(600.0, now()))
    old = watchdog_on(tmp_path)
    (tmp_path / watchdog_files.LOCK).unlink()
    old.watch()
    watchdog_on(tmp_path)
    old.watch()


# Process.


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Path]:
    """A state directory with a lease that has just been granted, and an agent: this process."""
    lock = try_lock(tmp_path / watchdog_files.AGENT_LOCK)
    assert lock is not None
    os.write(lock, f"{os.getpid()}\n".encode())
    lease_file.write(tmp_path / "lease.json", grant(600.0, now()))
    yield tmp_path
    os.close(lock)
    watchdog_files.stop_watchdog(tmp_path)


def watchdog_of(state_dir: Path) -> psutil.Process:
    found: list[int] = []

    def started() -> bool:
        text = (state_dir / watchdog_files.LOCK).read_text().strip()
        found[:] = [int(text)] if text else []
        return bool(found)

    until(started)
    return psutil.Process(found[0])


def test_watchdog_is_one_small_process_of_a_session_of_its_own(guarded: Path) -> None:
    keeper = WatchdogKeeper(guarded)
    keeper.ensure_running()
    first = watchdog_of(guarded)
    keeper.ensure_running()
    WatchdogKeeper(guarded).ensure_running()
    assert watchdog_of(guarded).pid == first.pid
    assert os.getsid(first.pid) == first.pid
    assert [p.pid for p in psutil.process_iter() if str(guarded) in " ".join(_words(p))] == [first.pid]
    assert first.memory_info().rss < 40 << 20
    assert not loaded(guarded)
    assert {Path(f.path).name for f in first.open_files()} <= {watchdog_files.LOCK, "fence.log"}


def test_watchdog_that_was_killed_is_started_again_and_leaves_no_zombie(guarded: Path) -> None:
    keeper = WatchdogKeeper(guarded)
    keeper.ensure_running()
    first = watchdog_of(guarded)
    first.kill()
    until(lambda: not is_locked(guarded / watchdog_files.LOCK))
    keeper.ensure_running()
    until(lambda: (guarded / watchdog_files.LOCK).read_text().strip() not in ("", str(first.pid)))
    keeper.ensure_running()
    assert not psutil.pid_exists(first.pid)


def test_stop_all_ends_the_watchdog_and_the_lease(tmp_path: Path) -> None:
    lock = try_lock(tmp_path / watchdog_files.AGENT_LOCK)
    assert lock is not None
    lease_file.write(tmp_path / "lease.json", grant(600.0, now()))
    WatchdogKeeper(tmp_path).ensure_running()  # not even one that is just starting is left
    os.close(lock)
    assert main(["--state-dir", str(tmp_path), "--stop-all"]) == 0
    assert not is_locked(tmp_path / watchdog_files.LOCK)
    assert not (tmp_path / "lease.json").exists()


# Lock holder.


def test_holder_is_who_wrote_its_id_and_has_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder(path) is None
    lock = try_lock(path)
    assert lock is not None
    assert holder(path) is None  # it has said nothing yet
    os.write(lock, b"1\n")
    assert holder(path) is None  # which has got the same id
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    found = holder(path)
    assert found is not None
    os.close(found)
    os.close(lock)
    assert holder(path) is None


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def loaded(state_dir: Path) -> bool:
    """Whether the watchdog has imported the code that stops replicas."""
    maps = Path(f"/proc/{watchdog_of(state_dir).pid}/maps").read_text()
    return "pydantic_core" in maps
