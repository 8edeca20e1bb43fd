"""Reading safetensors: the shapes of a stored file, and arrays of every type that JAX has, bfloat16 among them."""

import json
from typing import Any

import ml_dtypes  # of JAX
import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.storage import StoredFile

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(bool),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    **{
        f"{kind[0].upper()}{bits}": np.dtype(f"{kind}{bits}")
        for kind, sizes in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64)), ("float", (16, 32, 64)))
        for bits in sizes
    },
}
"""Types of arrays, by their names in safetensors."""
AS_SAFETENSORS = "Save the model as safetensors: by safetensors.torch.save_model, or by save_pretrained of transformers"
_LENGTH = 8  # bytes of the header's length, before the header
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


class NotSafetensorsError(ValueError):
    """The content is none. The message continues "This file ..."."""


def shapes(file: StoredFile) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays, by name, of which only the header is read.

    Raises:
        NotSafetensorsError: it is another file, or is cut short.
    """
    (first,) = file.read([(0, min(file.size, 64))]) if file.size else (b"",)
    if not first:
        raise NotSafetensorsError("is empty")
    if first.startswith(b"version https://git-lfs"):
        raise NotSafetensorsError("is a pointer of Git LFS, in place of the file itself: fetch it by `git lfs pull`")
    if first.startswith(_PICKLES):
        raise NotSafetensorsError(
            "is a pickle or a zip archive, as torch.save writes them, which could run any code when it is read. "
            + AS_SAFETENSORS
        )
    length = int.from_bytes(first[:_LENGTH], "little")
    if first[_LENGTH : _LENGTH + 1] != b"{":
        raise NotSafetensorsError("is no safetensors file")
    if _LENGTH + length > file.size:
        raise NotSafetensorsError(f"is cut short: it ends after {file.size} bytes, within its header")
    (header,) = file.read([(_LENGTH, length)])
    try:
        arrays = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        found = {name: tuple(int(size) for size in entry["shape"]) for name, entry in arrays.items()}
        end = _LENGTH + length + max((int(entry["data_offsets"][1]) for entry in arrays.values()), default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise NotSafetensorsError("is no safetensors file: its header cannot be read") from error
    if file.size < end:
        raise NotSafetensorsError(f"is cut short: it has {file.size} of {end} bytes")
    return found


def arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays by name, like those of `safetensors.numpy.load`, which reads no bfloat16.

    Raises:
        NotSafetensorsError: the content is of another kind, or has a type that JAX lacks.
    """
    import safetensors

    try:
        stored = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise NotSafetensorsError(f"is no safetensors file: {error}") from error
    found = {}
    for name, tensor in stored:
        dtype = DTYPES.get(tensor["dtype"])
        if dtype is None:
            raise NotSafetensorsError(f"has {name} as {tensor['dtype']}; allowed are {', '.join(DTYPES)}")
        found[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return found
