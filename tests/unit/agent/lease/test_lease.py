"""The agent's lease, in memory and on disk."""

import json
from pathlib import Path

import pytest

from trainyard_agent.host.clock import ManualClock, SystemClock
from trainyard_agent.host.files import DamagedFile
from trainyard_agent.lease import lease_file
from trainyard_agent.lease.lease import Lease
from trainyard_agent.lease.lease_file import Grant


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lease.json"


def grant(lease_s: float, renewed_at: float = 0.0) -> Grant:
    return Grant(lease_s, renewed_at, lease_file.boot_id(), "1")


def test_lease_that_never_ends_stops_no_run(path: Path) -> None:
    clock = ManualClock()
    lease = Lease(clock, path)
    lease.renew(0.0, 60.0)
    lease.renew(0.0, None)
    clock.advance(1e9)
    assert not lease.must_stop(10.0)
    assert lease.grace_left(10.0) == 10.0
    assert not path.exists()
    assert not Lease(clock, path).must_stop(10.0)


def test_lease_is_saved_for_the_next_agent(path: Path) -> None:
    clock = ManualClock()
    Lease(clock, path).renew(clock.monotonic(), 600.0)
    clock.advance(400)

    lease = Lease(clock, path)

    assert not lease.must_stop(10.0)
    clock.advance(185.0)
    assert lease.must_stop(10.0)


def test_lease_of_an_earlier_boot_has_ended_with_its_replicas(path: Path) -> None:
    lease_file.write(path, Grant(600.0, 0.0, "another boot", "1"))
    clock = ManualClock()
    clock.advance(1e6)
    assert not Lease(clock, path).must_stop(10.0)


def test_run_is_stopped_its_grace_before_the_end_of_the_lease_and_killed_within_it() -> None:
    cases = {  # (lease, grace): when it is stopped, and killed
        (600.0, 30.0): (565.0, 595.0),
        (120.0, 30.0): (85.0, 115.0),
        (45.0, 10.0): (30.0, 40.0),
        (45.0, 30.0): (30.0, 40.0),  # never before two thirds
        (10.0, 2.0): (7.0, 7.5),
    }
    found = {}
    for lease_s, grace_s in cases:
        clock = ManualClock()
        lease = Lease(clock)
        lease.renew(0.0, lease_s)
        while not lease.must_stop(grace_s):
            clock.advance(0.5)
        stopped_at = clock.monotonic()
        found[lease_s, grace_s] = (stopped_at, stopped_at + lease.grace_left(grace_s))
    assert found == cases


def test_lease_is_renewed_in_place(path: Path) -> None:
    """On a full disk nothing new can be made, and nothing can grow."""
    lease_file.write(path, grant(600.0, renewed_at=1.0))
    before = path.stat()
    lease_file.write(path, grant(6e9, renewed_at=123456.789))
    assert (path.stat().st_ino, path.stat().st_size) == (before.st_ino, before.st_size)
    assert lease_file.read(path) == grant(6e9, renewed_at=123456.789)


@pytest.mark.parametrize("damage", ["", "{}\n0\n", "half", json.dumps({"lease_s": 1.0}), "\0" * 512])
def test_lease_that_is_damaged_counts_as_none_and_the_next_answer_repairs_it(
    path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(damage)
    with pytest.raises(DamagedFile):
        lease_file.read(path)

    lease = Lease(ManualClock(), path)

    assert not lease.must_stop(1.0)
    assert "lease.json is damaged" in caplog.text
    lease.renew(5.0, 60.0)
    assert lease_file.read(path) is not None


def test_lease_that_is_half_overwritten_is_damaged(path: Path) -> None:
    lease_file.write(path, grant(600.0, renewed_at=11111.1))
    old = path.read_bytes()
    lease_file.write(path, grant(600.0, renewed_at=22222.2))
    new = path.read_bytes()
    at = old.index(b"11111.1") + 3
    path.write_bytes(new[:at] + old[at:])
    with pytest.raises(DamagedFile):
        lease_file.read(path)


def test_all_processes_of_a_boot_share_the_clock_of_leases() -> None:
    uptime = float(Path("/proc/uptime").read_text().split()[0])  # which counts the time that a machine slept
    assert uptime - 1 <= SystemClock().monotonic() <= uptime + 60
