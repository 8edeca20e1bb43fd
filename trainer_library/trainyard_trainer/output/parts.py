"""The parts of a checkpoint: safetensors of about PART_BYTES each, without a count of bytes in 31 bits.

A large array is cut along its first axis: NAME#0, NAME#1, ... One that is divided over processes has the place of each
piece in its name: NAME@START,START for a piece that begins there on each axis.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.output import tensors

PART_BYTES = 64 * 2**20

Arrays = Mapping[str, NDArray[Any]]


class Piece(NamedTuple):
    """A part of an array, which begins at `starts`, one for each axis."""

    name: str
    starts: tuple[int, ...]
    array: NDArray[Any]


def placed_name(name: str, starts: Sequence[int]) -> str:
    return f"{name}@{','.join(map(str, starts))}"


def encode(arrays: Arrays) -> Iterator[bytes]:
    """The contents of the parts."""
    import safetensors.numpy

    part: dict[str, NDArray[Any]] = {}
    size = 0
    for name, array in _cut(arrays):
        if part and size + array.nbytes > PART_BYTES:
            yield safetensors.numpy.save(part)
            part, size = {}, 0
        part[name] = array
        size += array.nbytes
    if part:
        yield safetensors.numpy.save(part)


def decode(parts: Iterable[bytes]) -> Iterator[Piece]:
    """The pieces of parts, which come in order."""
    rows: dict[str, int] = {}
    for part in parts:
        for key, array in tensors.arrays(part).items():
            name, _, place = key.partition("@")
            if place or array.ndim == 0:
                yield Piece(name, tuple(int(start) for start in place.split(",") if start), array)
                continue
            name = key.partition("#")[0]
            start = rows.get(name, 0)
            rows[name] = start + len(array)
            yield Piece(name, (start, *(0,) * (array.ndim - 1)), array)


def whole(pieces: Iterable[Piece]) -> dict[str, NDArray[Any]]:
    """The arrays of all pieces."""
    by_name: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_name.setdefault(piece.name, []).append(piece)
    return {name: _joined(own) for name, own in by_name.items()}


def _joined(pieces: list[Piece]) -> NDArray[Any]:
    if len(pieces) == 1:
        return pieces[0].array
    ends = np.array([np.add(piece.starts, piece.array.shape) for piece in pieces])
    joined = np.empty(ends.max(axis=0), pieces[0].array.dtype)
    for piece, end in zip(pieces, ends, strict=True):
        joined[tuple(map(slice, piece.starts, end))] = piece.array
    return joined


def _cut(arrays: Arrays) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, array in arrays.items():
        rows = max(1, PART_BYTES * len(array) // array.nbytes) if array.ndim and array.nbytes else 0
        if "@" in name or array.nbytes <= PART_BYTES or len(array) <= 1:
            yield name, np.ascontiguousarray(array).reshape(array.shape)
        else:
            for number, start in enumerate(range(0, len(array), rows)):
                yield f"{name}#{number}", np.ascontiguousarray(array[start : start + rows])
