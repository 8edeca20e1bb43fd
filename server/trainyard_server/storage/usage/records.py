"""Records of a replica's resource usage: their binary format, of fixed size, and their downsampling. Pure.

A record is a CRC, the time, CPU and memory, and for each GPU of the replica, in order, its utilization and memory.
Unknown values are NaN, or the largest number of bytes.
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
_LATEST = 2**37
_LEAST_WIDTH_S = 5.0


class GpuPoint(NamedTuple):
    """The usage of one GPU. None: unknown."""

    utilization: float | None
    memory_bytes: int | None
    memory_total: int | None


NOTHING = GpuPoint(None, None, None)


class UsagePoint(NamedTuple):
    """`time` is seconds since the epoch; `cpu` the busy cores since the previous point."""

    time: float
    cpu: float | None
    memory_bytes: int
    gpus: tuple[GpuPoint, ...] = ()


def size_of(gpus: int) -> int:
    """The size in bytes of a record with that number of GPUs."""
    return _CHECK.size + _HEAD.size + gpus * _GPU.size


def packed(point: UsagePoint) -> bytes:
    data = _HEAD.pack(point.time, _or_nan(point.cpu), point.memory_bytes)
    for gpu in point.gpus:
        used, total = (_UNKNOWN if size is None else size for size in gpu[1:])
        data += _GPU.pack(_or_nan(gpu.utilization), used, total)
    return _CHECK.pack(zlib.crc32(data)) + data


def unpacked(raw: bytes, gpus: int) -> Iterator[UsagePoint]:
    """Parse records. Skips damaged ones, those with a time that no calendar has, and an incomplete one at the end."""
    size = size_of(gpus)
    for start in range(0, len(raw) - size + 1, size):
        data = raw[start + _CHECK.size : start + size]
        if zlib.crc32(data) != _CHECK.unpack_from(raw, start)[0]:
            continue
        time, cpu, memory_bytes = _HEAD.unpack_from(data)
        if not 0 <= time <= _LATEST:  # of an agent whose clock was wrong
            continue
        devices = _GPU.iter_unpack(data[_HEAD.size :])
        yield UsagePoint(
            time,
            _or_none(cpu),
            memory_bytes,
            tuple(
                GpuPoint(_or_none(share), *(None if size == _UNKNOWN else size for size in sizes))
                for share, *sizes in devices
            ),
        )


def thinned(points: Sequence[UsagePoint], most: int) -> list[UsagePoint]:
    """Downsample to at most `most` (2 or more) points, sorted by time, one for each interval: the mean of CPU and
    utilization, the maximum of memory. Intervals are aligned to fixed times and double in width as needed, so repeated
    downsampling loses little."""
    points = sorted(points, key=lambda point: point.time)
    if len(points) <= most:
        return points
    span, width = points[-1].time - points[0].time, _LEAST_WIDTH_S
    while span // width + 2 > most:
        width *= 2
    # A point stands for the time since the previous one, which is unknown for the first.
    spans = [max(after.time - before.time, 1e-3) for before, after in pairwise(points)]
    weights = [spans[0], *spans]
    weighed = zip(points, weights, strict=True)
    return [_merged(list(group)) for _, group in groupby(weighed, key=lambda sample: sample[0].time // width)]


def _merged(weighed: Sequence[tuple[UsagePoint, float]]) -> UsagePoint:
    if len(weighed) == 1:
        return weighed[0][0]
    points, weights = zip(*weighed, strict=True)
    devices = zip(*(point.gpus for point in points), strict=True)
    return UsagePoint(
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
    numbers = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in numbers)
    return sum(value * weight for value, weight in numbers) / total if total else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
