"""TFRecord files of tf.train.Examples: reading and writing, without TensorFlow.

To write your own arrays:

    write_tfrecord("train.tfrecord", (example(image, label) for image, label in zip(images, labels)))
"""

import array
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.data.examples import InvalidExample, decode
from trainyard_trainer.errors import FileError
from trainyard_trainer.storage import StoredFile

_HEADER = struct.Struct("<QI")  # of a record: the payload's length and the checksum of the length


class TFRecordReader:
    """Random access to a TFRecord file, by an index of its records that is built when it is opened. Thread-safe."""

    def __init__(self, file: StoredFile, url: str) -> None:
        self._file = file
        self._url = url
        self._offsets, self._lengths = self._index()

    def __len__(self) -> int:
        return len(self._offsets)

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """The records in the given order; FileError if one is damaged."""
        ranges = [(self._offsets[number] + _HEADER.size, self._lengths[number] + 4) for number in numbers]
        records = []
        for number, stored in zip(numbers, self._file.read(ranges), strict=True):
            data, checksum = stored[:-4], stored[-4:]
            if checksum != _masked_crc(data).to_bytes(4, "little"):
                raise self._damaged(number, self._offsets[number], "its content does not match its checksum")
            records.append(data)
        return records

    def _index(self) -> tuple["array.array[int]", "array.array[int]"]:
        offsets, lengths = array.array("q"), array.array("q")
        size = self._file.size
        with self._file.open() as file:
            offset = 0
            while offset < size:
                header = file.read(_HEADER.size)
                if len(header) < _HEADER.size:
                    raise self._damaged(len(offsets), offset, "the file ends within its header")
                length, checksum = _HEADER.unpack(header)
                if checksum != _masked_crc(header[:8]):
                    if offset == 0 and header.startswith(b"\x1f\x8b"):
                        raise FileError(
                            f"{self._url} is compressed with gzip, which allows no random access."
                            " Decompress it (gzip -d) first."
                        )
                    raise self._damaged(len(offsets), offset, "its length does not match its checksum")
                end = offset + _HEADER.size + length + 4
                if end > size:
                    raise self._damaged(len(offsets), offset, f"it ends at byte {end} and the file at byte {size}")
                offsets.append(offset)
                lengths.append(length)
                file.seek(end)
                offset = end
        return offsets, lengths

    def _damaged(self, number: int, offset: int, what: str) -> FileError:
        return FileError(
            f"{self._url} is cut short or damaged, or is no TFRecord file:"
            f" record {number}, at byte {offset}: {what}. Write or copy the file again."
        )


class Records:
    """A file of examples that all have the shape and type of the first."""

    in_memory = False
    label_names: tuple[str, ...] | None = None

    def __init__(self, url: str, reader: TFRecordReader, input_shape: tuple[int, ...]) -> None:
        self.url = url
        self._reader = reader
        self._input_shape = input_shape
        if not len(reader):
            raise FileError(f"{url} has no examples. Remove it, or write it again.")
        inputs, label = self._decode(0, reader.read([0])[0])
        self._input_type, self._label_shape = inputs.dtype, label.shape

    def __len__(self) -> int:
        return len(self._reader)

    def rows(self, indices: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        numbers = indices.tolist()
        inputs = np.empty((len(numbers), *self._input_shape), self._input_type)
        labels = np.empty((len(numbers), *self._label_shape), np.int32)
        for row, (number, data) in enumerate(zip(numbers, self._reader.read(numbers), strict=True)):
            input_, label = self._decode(number, data)
            actual, expected = (input_.dtype, label.shape), (self._input_type, self._label_shape)
            if actual != expected:
                raise FileError(
                    f"{self.url}: record {number} has inputs of type {actual[0]} and a label of shape {actual[1]},"
                    f" where record 0 has {expected[0]} and {expected[1]}. All records of a file must be alike."
                )
            inputs[row], labels[row] = input_, label
        return inputs, labels

    def _decode(self, number: int, data: bytes) -> tuple[NDArray[Any], NDArray[np.int32]]:
        try:
            return decode(data, self._input_shape)
        except InvalidExample as error:
            raise FileError(f"{self.url}: record {number} {error}") from error


def write_tfrecord(path: str | Path, examples: Iterable[bytes]) -> None:
    """Write records (see `example`) as a TFRecord file, atomically."""
    partial = Path(f"{path}.partial")
    with partial.open("wb") as file:
        for data in examples:
            length = struct.pack("<Q", len(data))
            file.write(length + struct.pack("<I", _masked_crc(length)))
            file.write(data + struct.pack("<I", _masked_crc(data)))
    partial.replace(path)


def _masked_crc(data: bytes) -> int:
    """TFRecord's checksum: a masked CRC-32C."""
    import google_crc32c

    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
