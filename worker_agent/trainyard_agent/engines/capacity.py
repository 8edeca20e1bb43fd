"""The CPUs, memory, GPUs and TPUs of this machine that replicas may use."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence, Set
from pathlib import Path

import psutil

from trainyard_agent.host.accelerators import gpu_type
from trainyard_protocol.job.resources import GIGABYTE, Capacity, Gpu

_MEBIBYTE = 1 << 20
_CGROUP = Path("/sys/fs/cgroup")
_NVIDIA_SMI_S = 20.0
_QUERY = ["--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits"]


class BadCapacity(Exception):
    """Invalid --cpus or --memory-gb on the command line."""


def detect(cpus: str = "", memory_gb: float | None = None, tpus: Sequence[Gpu] = ()) -> Capacity:
    """The capacity that the agent's process may use, or the part that the arguments select.

    `cpus` is a list of CPU numbers such as `0,2-5`. Raises BadCapacity for a CPU that this process may not use.
    """
    usable = os.sched_getaffinity(0)
    return Capacity(
        cpus=parse_cpus(cpus, usable) if cpus else within_quota(usable, _quota()),
        memory_bytes=round(memory_gb * GIGABYTE) if memory_gb else _memory(),
        gpus=(*_gpus(), *tpus),
    )


def parse_cpus(text: str, usable: Set[int]) -> tuple[int, ...]:
    """`"0,2-5"` -> (0, 2, 3, 4, 5). Raises BadCapacity unless each is among `usable`."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part)
        if match is None:
            raise BadCapacity(f"--cpus takes CPU numbers such as 0,2-5, not {part.strip()!r}.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise BadCapacity(f"--cpus: the range {part.strip()} ends before it begins.")
        numbers |= set(range(first, last + 1))
    refused = sorted(numbers - usable)
    if refused:
        raise BadCapacity(
            f"--cpus: CPU {refused[0]} cannot be used; this process may use {', '.join(map(str, sorted(usable)))}."
        )
    return tuple(sorted(numbers))


def within_quota(usable: Set[int], quota: float | None) -> tuple[int, ...]:
    """The CPUs that the cgroup's quota allows, at least one."""
    cpus = tuple(sorted(usable))
    return cpus if quota is None else cpus[: max(1, int(quota))]


def parse_gpus(output: str) -> tuple[Gpu, ...]:
    """Parse nvidia-smi: `GPU-uuid, Tesla T4, 15360` per line, memory in MiB ("[N/A]": unknown)."""
    gpus = []
    for line in output.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[0]:
            memory = int(fields[2]) * _MEBIBYTE if fields[2].isdecimal() else 0
            gpus.append(Gpu(id=fields[0], type=gpu_type(fields[1]), memory_bytes=memory))
    return tuple(gpus)


def _gpus() -> tuple[Gpu, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        answer = subprocess.run([program, *_QUERY], capture_output=True, text=True, timeout=_NVIDIA_SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()  # the driver hangs
    return parse_gpus(answer.stdout) if answer.returncode == 0 else ()


def _quota() -> float | None:
    """The cgroup's CPU limit, in CPUs (version 2, then 1); None: no limit."""
    match _words(_CGROUP / "cpu.max"):
        case [quota, period] if quota.isdecimal():
            return int(quota) / int(period)
    quotas = _words(_CGROUP / "cpu/cpu.cfs_quota_us")
    periods = _words(_CGROUP / "cpu/cpu.cfs_period_us")
    if quotas and periods and int(quotas[0]) > 0:
        return int(quotas[0]) / int(periods[0])
    return None


def _memory() -> int:
    total = int(psutil.virtual_memory().total)
    limits = [_words(_CGROUP / "memory.max"), _words(_CGROUP / "memory/memory.limit_in_bytes")]
    return min([total, *(int(words[0]) for words in limits if words and words[0].isdecimal())])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []
