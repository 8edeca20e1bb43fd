"""Several arrays of each example as one, so that all else handles one: their bytes, side by side.

A name ends in its tensor's shape: N examples, B of a batch, S bytes of one example.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import jax

Layout = tuple[tuple[str, tuple[int, ...], str], ...]
"""Name, shape and type of each array of an example, in order; empty for one array as it is."""


def pack(arrays: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.uint8], Layout]:
    """Arrays [N, ...] of uint8, int32 or float32 -> bytes [N, S] and their layout."""
    parts = [np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8) for array in arrays.values()]
    layout = tuple((name, array.shape[1:], str(array.dtype)) for name, array in arrays.items())
    return np.concatenate(parts, axis=1), layout


def unpack(packed_BS: "jax.Array", layout: Layout) -> "dict[str, jax.Array]":
    """Bytes [B, S] -> the arrays [B, ...] by name, inside a compiled function."""
    import jax

    arrays, start = {}, 0
    for name, shape, kind in layout:
        count, size = math.prod(shape), np.dtype(kind).itemsize
        part = packed_BS[:, start : start + count * size]
        start += count * size
        if size > 1:
            part = jax.lax.bitcast_convert_type(part.reshape(-1, count, size), np.dtype(kind))
        arrays[name] = part.reshape(-1, *shape)
    return arrays
