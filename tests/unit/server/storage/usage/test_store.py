"""Usage points of replicas: records, downsampling, and files with several writers."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_server.storage.streams import Stream
from trainyard_server.storage.usage.records import GpuPoint, UsagePoint, packed, size_of, thinned
from trainyard_server.storage.usage.store import UsageStore

CHIEF = Stream(1, "master-replica-0")
WORKER = Stream(1, "worker-replica-0")
START = 1_700_000_000.0


def point(number: int, cpu: float | None = 1.0, memory: int = 100, *gpus: GpuPoint) -> UsagePoint:
    return UsagePoint(START + 5 * number, cpu, memory, gpus)


def cpu(of: UsagePoint) -> float:
    assert of.cpu is not None
    return of.cpu


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


@pytest.fixture
def store(tmp_path: Path) -> UsageStore:
    return UsageStore(tmp_path / "usage", most=20)


def series(store: UsageStore, stream: Stream = CHIEF, gpus: int = 0) -> list[UsagePoint]:
    return store.series("p", "j", stream, gpus, 10_000)


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
