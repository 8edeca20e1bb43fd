"""Accelerators: the types of GPUs by the names of their driver, and the TPU, which has none that could be asked."""

import re
from collections.abc import Mapping
from pathlib import Path

from trainyard_protocol.job.resources import Gpu

_TPU_DEVICES = ("accel*", "vfio/*")  # of TPU v2 to v4, and of later ones
_SERVICE_NAMES: Mapping[str, str] = {
    "A100-80GB": "NVIDIA_A100_80GB",
    "A100": "NVIDIA_TESLA_A100",
    "H100": "NVIDIA_H100_80GB",
    "H200": "NVIDIA_H200_141GB",
    "K80": "NVIDIA_TESLA_K80",
    "L4": "NVIDIA_L4",
    "P100": "NVIDIA_TESLA_P100",
    "P4": "NVIDIA_TESLA_P4",
    "T4": "NVIDIA_TESLA_T4",
    "V100": "NVIDIA_TESLA_V100",
}
"""Accelerator types of the API and of Compute Engine, by model."""


def gpu_type(name: str) -> str:
    """`Tesla T4` -> `NVIDIA_TESLA_T4`; a model that the service never had keeps its name, in that form."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", name.upper()) if word]
    model = next((word for word in words if word in _SERVICE_NAMES), "")
    if model == "A100" and "80GB" in words:
        model = "A100-80GB"
    if model:
        return _SERVICE_NAMES[model]
    return "_".join(words if words[:1] == ["NVIDIA"] else ["NVIDIA", *words])


def parse_tpus(text: str) -> tuple[Gpu, ...]:
    """`8xTPU_V3` -> its cores as devices. Raises ValueError."""
    match = re.fullmatch(r"([1-9]\d{0,3})x(TPU_\w+)", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"must look like 8xTPU_V3 (cores, and the type of accelerator); this is {text!r}")
    return tuple(Gpu(id=f"tpu-{number}", type=match[2].upper()) for number in range(int(match[1])))


def tpu_device_files() -> list[str]:
    """The device files by which programs use the TPU."""
    return sorted(str(path) for pattern in _TPU_DEVICES for path in Path("/dev").glob(pattern))
