"""How much of the CPU something uses, from two readings of what it has used so far; and what the devices' driver says.
Pure."""

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from trainyard_protocol.usage import GpuUsage

_MEBIBYTE = 1 << 20
_FIELDS = 4


@dataclass(frozen=True, slots=True)
class Use:
    """What a replica uses at one moment: seconds of CPU time since it began, bytes of memory."""

    cpu_s: float
    memory_bytes: int


class Meter:
    """Remembers the last reading of each key."""

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[float, float]] = {}

    def cores(self, key: Hashable, at: float, cpu_s: float) -> float | None:
        """How many cores were busy on average since the reading before; None for the first.

        `at` is a monotonic clock's, in seconds. A count that went back (a process was buried where nobody counts it)
        is no use at all.
        """
        before = self._last.get(key)
        if before is not None and at <= before[0]:
            return None
        self._last[key] = (at, cpu_s)
        if before is None:
            return None
        return max(0.0, cpu_s - before[1]) / (at - before[0])

    def keep(self, keys: Collection[Hashable]) -> None:
        """Forget all the others."""
        self._last = {key: last for key, last in self._last.items() if key in keys}


def parse_gpus(output: str) -> dict[str, GpuUsage]:
    """The answer of nvidia-smi by device id: `GPU-uuid, 37, 1024, 15360` a line: per cent, MiB, MiB. Where the driver
    cannot tell something ("[N/A]"), there is no utilization, or no memory."""
    found = {}
    for line in output.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == _FIELDS and fields[0]:
            percent, used, total = (int(field) if field.isdecimal() else None for field in fields[1:])
            found[fields[0]] = GpuUsage(
                id=fields[0],
                utilization=None if percent is None else min(percent, 100) / 100,
                memory_bytes=(used or 0) * _MEBIBYTE,
                memory_total=(total or 0) * _MEBIBYTE,
            )
    return found
