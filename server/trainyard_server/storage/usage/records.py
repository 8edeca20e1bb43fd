"""What a replica used at one moment, as a record of fixed size, and how many moments become few. Pure.

A record is a check, the time, the CPU and the memory, and for each device of the replica, in their order, its
utilization and its memory. What is not known is NaN, or the largest number of bytes.
"""

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

_CHECK = struct.Struct("<I")
_HEAD = struct.Struct("<ddQ")  # seconds since the epoch, cores, bytes
_GPU = struct.Struct("<dQQ")  # utilization, bytes, of so many bytes
_UNKNOWN = 2**64 - 1
_LEAST_WIDTH_S = 5.0


class GpuPoint(NamedTuple):
    """None: not known at this moment."""

    utilization: float | None
    memory_bytes: int | None
    memory_total: int | None


NOTHING = GpuPoint(None, None, None)


class Point(NamedTuple):
    """`time` in seconds since the epoch; `cpu` the cores that were busy since the point before."""

    time: float
    cpu: float | None
    memory_bytes: int
    gpus: tuple[GpuPoint, ...] = ()


def size_of(gpus: int) -> int:
    """The bytes of a record of a replica with so many devices."""
    return _CHECK.size + _HEAD.size + gpus * _GPU.size


def packed(point: Point) -> bytes:
    data = _HEAD.pack(point.time, _or_nan(point.cpu), point.memory_bytes)
    for gpu in point.gpus:
        used, total = (_UNKNOWN if size is None else size for size in gpu[1:])
        data += _GPU.pack(_or_nan(gpu.utilization), used, total)
    return _CHECK.pack(zlib.crc32(data)) + data


def unpacked(raw: bytes, gpus: int) -> Iterator[Point]:
    """The whole records; one that is damaged, and what follows the last whole one, are passed over."""
    size = size_of(gpus)
    for start in range(0, len(raw) - size + 1, size):
        data = raw[start + _CHECK.size : start + size]
        if zlib.crc32(data) != _CHECK.unpack_from(raw, start)[0]:
            continue
        time, cpu, memory_bytes = _HEAD.unpack_from(data)
        devices = _GPU.iter_unpack(data[_HEAD.size :])
        yield Point(
            time,
            _or_none(cpu),
            memory_bytes,
            tuple(
                GpuPoint(_or_none(share), *(None if size == _UNKNOWN else size for size in sizes))
                for share, *sizes in devices
            ),
        )


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """No more than `most` (2 or more) points, which stand for equal spans of time: CPU and utilization as means, memory
    as the most of it. In the order of time. The spans lie where they lie whatever comes later, and are twice as long
    where they would be too many: so what was thinned before loses little."""
    points = sorted(points, key=lambda point: point.time)
    if len(points) <= most:
        return points
    span, width = points[-1].time - points[0].time, _LEAST_WIDTH_S
    while span // width + 2 > most:
        width *= 2
    # Each stands for the time since the one before; nobody knows that of the first.
    spans = [max(after.time - before.time, 1e-3) for before, after in pairwise(points)]
    weights = [spans[0], *spans]
    weighed = zip(points, weights, strict=True)
    return [_merged(list(group)) for _, group in groupby(weighed, key=lambda one: one[0].time // width)]


def _merged(weighed: Sequence[tuple[Point, float]]) -> Point:
    if len(weighed) == 1:
        return weighed[0][0]
    points, weights = zip(*weighed, strict=True)
    devices = zip(*(point.gpus for point in points), strict=True)
    return Point(
        points[-1].time,
        _mean([point.cpu for point in points], weights),
        max(point.memory_bytes for point in points),
        tuple(
            GpuPoint(
                _mean([gpu.utilization for gpu in device], weights),
                max((gpu.memory_bytes for gpu in device if gpu.memory_bytes is not None), default=None),
                max((gpu.memory_total for gpu in device if gpu.memory_total is not None), default=None),
            )
            for device in devices
        ),
    )


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
