"""The TPU of this machine, which has no driver that could be asked."""

import re
from pathlib import Path

from trainyard_protocol.job.resources import Gpu

_DEVICES = ("accel*", "vfio/*")  # of TPU v2 to v4, and of later ones


def parse_tpus(text: str) -> tuple[Gpu, ...]:
    """`8xTPU_V3` -> its cores as devices. Raises ValueError."""
    match = re.fullmatch(r"([1-9]\d{0,3})x(TPU_\w+)", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"must look like 8xTPU_V3 (cores, and the type of accelerator); this is {text!r}")
    return tuple(Gpu(id=f"tpu-{number}", type=match[2].upper()) for number in range(int(match[1])))


def device_files() -> list[str]:
    """The device files by which programs use it."""
    return sorted(str(path) for pattern in _DEVICES for path in Path("/dev").glob(pattern))
