"""Usage points of replicas: records, downsampling, and files with several writers."""

import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_server.storage.files import LockTimeout, locked
from trainyard_server.storage.streams import Stream
from trainyard_server.storage.usage.records import NOTHING, GpuPoint, UsagePoint, packed, size_of, thinned, unpacked
from trainyard_server.storage.usage.store import UsageStore

CHIEF = Stream(1, "master-replica-0")
WORKER = Stream(1, "worker-replica-0")
START = 1_700_000_000.0


def point(number: int, cpu: float | None = 1.0, memory: int = 100, *gpus: GpuPoint) -> UsagePoint:
    return UsagePoint(START + 5 * number, cpu, memory, gpus)


def cpu(of: UsagePoint) -> float:
    assert of.cpu is not None
    return of.cpu


@pytest.mark.parametrize(
    "one",
    [
        point(0, None, 0),
        point(1, 0.125, 2**62),
        point(2, 63.5, 7, GpuPoint(0.37, 5, 10), NOTHING),
        point(3, 1.0, 7, GpuPoint(None, 0, 0)),
    ],
)
def test_point_round_trips(one: UsagePoint) -> None:
    raw = packed(one)
    assert len(raw) == size_of(len(one.gpus))
    assert list(unpacked(raw, len(one.gpus))) == [one]


def test_few_points_are_sorted_by_time_and_not_downsampled() -> None:
    points = [point(n, n / 10) for n in range(50)]
    assert thinned(points, 50) == points
    assert thinned([point(2, None), point(1), point(2, 3.0)], 10)[0] == point(1)


@pytest.mark.parametrize("most", [2, 3, 10, 499])
def test_downsampling_respects_the_limit_and_keeps_mean_and_peak(most: int) -> None:
    dice = random.Random(most)
    points = [point(n, dice.uniform(0, 8), dice.randrange(10**9)) for n in range(1000)]
    few = thinned(points, most)
    assert 1 <= len(few) <= most
    assert [p.time for p in few] == sorted(p.time for p in few)
    assert few[-1].time == points[-1].time
    assert max(p.memory_bytes for p in few) == max(p.memory_bytes for p in points)
    ends = [START - 5, *(p.time for p in few)]
    widths = [after - before for before, after in pairwise(ends)]
    mean = sum(cpu(p) * width for p, width in zip(few, widths, strict=True)) / sum(widths)
    assert mean == pytest.approx(sum(map(cpu, points)) / len(points))


def test_unknown_values_are_ignored_in_a_mean() -> None:
    gpus = [GpuPoint(None, None, None), GpuPoint(0.5, 7, 10), GpuPoint(1.0, 3, 10)]
    points = [point(n, None if n == 0 else 2.0, 1, gpus[n % 3]) for n in range(6)]
    (few, *_) = thinned(points, 2)
    assert few.cpu == 2.0
    assert few.gpus[0].memory_bytes == 7
    assert few.gpus[0].utilization is not None
    assert 0.5 <= few.gpus[0].utilization <= 1.0


@pytest.fixture
def store(tmp_path: Path) -> UsageStore:
    return UsageStore(tmp_path / "usage", most=20)


def series(store: UsageStore, stream: Stream = CHIEF, gpus: int = 0) -> list[UsagePoint]:
    return store.series("p", "j", stream, gpus, 10_000)


def test_series_are_separate_for_each_replica(store: UsageStore) -> None:
    assert (series(store), store.newest("p", "j", CHIEF, 0)) == ([], None)
    store.add("p", "j", {CHIEF: [point(1)]})
    assert store.newest("p", "j", WORKER, 0) is None
    store.add("p", "j", {WORKER: [point(1, 2.0), point(2, 3.0)]})
    store.add("p", "j", {Stream(2, CHIEF.task): [point(9)]})
    store.add("p", "other", {CHIEF: [point(8)]})
    assert series(store) == [point(1)]
    assert series(store, WORKER) == [point(1, 2.0), point(2, 3.0)]
    assert store.newest("p", "j", WORKER, 0) == point(2, 3.0)


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "nul\0"])
def test_name_that_is_a_path_is_refused(store: UsageStore, name: str) -> None:
    for project, job_id in ((name, "j"), ("p", name)):
        with pytest.raises(InvalidArgument):
            store.add(project, job_id, {CHIEF: [point(1)]})
        with pytest.raises(InvalidArgument):
            store.series(project, job_id, CHIEF, 0, 10)


def test_series_never_exceeds_the_limit(store: UsageStore, tmp_path: Path) -> None:
    gpu = GpuPoint(0.5, 1, 2)
    file = tmp_path / "usage" / "p" / "j" / "1.master-replica-0"
    for n in range(300):
        store.add("p", "j", {CHIEF: [point(n, 1.0, n, gpu)]})
        assert file.stat().st_size <= 20 * size_of(1)
        assert store.newest("p", "j", CHIEF, 1) == point(n, 1.0, n, gpu)
    found = series(store, gpus=1)
    assert len(found) >= 5
    assert found[0].time < START + 5 * 100, "the beginning is there"
    assert sorted(path.name for path in file.parent.iterdir()) == ["1.master-replica-0", "lock"]


def test_killed_writer_and_damage_lose_only_their_own_point(store: UsageStore, tmp_path: Path) -> None:
    file = tmp_path / "usage" / "p" / "j" / "1.master-replica-0"
    store.add("p", "j", {CHIEF: [point(1), point(2)]})
    with file.open("ab") as torn:
        torn.write(packed(point(3))[:11])
    assert series(store) == [point(1), point(2)]
    assert store.newest("p", "j", CHIEF, 0) == point(2)
    store.add("p", "j", {CHIEF: [point(4)]})
    assert series(store) == [point(1), point(2), point(4)]
    file.write_bytes(file.read_bytes()[:-5] + b"\xff" * 5)
    assert store.newest("p", "j", CHIEF, 0) == point(2)


def test_writer_times_out_on_a_held_lock(store: UsageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add("p", "j", {CHIEF: [point(1)]})
    monkeypatch.setattr("trainyard_server.storage.usage.store._WAIT_S", 0.05)
    with locked(tmp_path / "usage" / "p" / "j", 1.0), pytest.raises(LockTimeout):
        store.add("p", "j", {CHIEF: [point(2)]})
    assert series(store) == [point(1)]


WRITER = """
import sys
from pathlib import Path
from trainyard_server.storage.logs.store import Stream
from trainyard_server.storage.usage.store import UsageStore
from trainyard_server.storage.usage.records import UsagePoint

store, mine = UsageStore(Path(sys.argv[1]), most=50), int(sys.argv[2])
for n in range(100):
    store.add("p", "j", {Stream(1, "master-replica-0"): [UsagePoint(1_700_000_000.0 + 10 * n + mine, 1.0, mine, ())]})
"""


def test_several_processes_write_and_one_reads(tmp_path: Path) -> None:
    store = UsageStore(tmp_path, most=50)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(number)]) for number in range(3)]
    try:
        while any(writer.poll() is None for writer in writers):
            found = series(store)
            assert len(found) <= 50
            assert all(p.cpu == 1.0 and p.memory_bytes < 3 for p in found)
    finally:
        assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    found = series(store)
    assert found[0].time <= START + 500
    assert found[-1].time >= START + 990
