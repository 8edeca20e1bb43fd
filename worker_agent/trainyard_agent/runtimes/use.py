"""CPU usage from consecutive readings of CPU time, and GPU usage from the output of nvidia-smi. Pure."""

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from trainyard_protocol.answers.usage import GpuUsage

_MEBIBYTE = 1 << 20
_FIELDS = 4


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """A reading of a replica's usage: seconds of CPU time since its start, bytes of memory. `cores` is the average
    number of busy cores where an engine measures that itself, in place of CPU time."""

    cpu_s: float
    memory_bytes: int
    cores: float | None = None


class UseMeter:
    """CPU usage by key, from each key's last reading."""

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[float, float]] = {}

    def cores(self, key: Hashable, at: float, cpu_s: float) -> float | None:
        """The average number of busy cores since the last reading; None for the first.

        `at` is monotonic, in seconds. CPU time that decreased (a process ended uncounted) gives 0.
        """
        before = self._last.get(key)
        if before is not None and at <= before[0]:
            return None
        self._last[key] = (at, cpu_s)
        if before is None:
            return None
        return max(0.0, cpu_s - before[1]) / (at - before[0])

    def keep(self, keys: Collection[Hashable]) -> None:
        """Forget all other keys."""
        self._last = {key: last for key, last in self._last.items() if key in keys}


def parse_gpus(output: str) -> dict[str, GpuUsage]:
    """Parse nvidia-smi, by device id: `GPU-uuid, 37, 1024, 15360` per line: percent, MiB, MiB. "[N/A]" is no
    utilization, or 0 bytes."""
    gpus = {}
    for line in output.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == _FIELDS and fields[0]:
            percent, used, total = (int(field) if field.isdecimal() else None for field in fields[1:])
            gpus[fields[0]] = GpuUsage(
                id=fields[0],
                utilization=None if percent is None else min(percent, 100) / 100,
                memory_bytes=(used or 0) * _MEBIBYTE,
                memory_total=(total or 0) * _MEBIBYTE,
            )
    return gpus
