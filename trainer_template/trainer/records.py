"""Examples as records of a TFRecord or an ArrayRecord file, without TensorFlow: reading them and writing them.

A record is a serialized tf.train.Example. Its inputs are the feature `inputs`, `image`, `image/encoded`, `image_raw`
or `x`: a JPEG or PNG, the bytes of an array (uint8, or float32 in little-endian order), floats or whole numbers. Its
label is the feature `labels`, `label`, `image/class/label` or `y`: one whole number or several.

To write arrays of your own:

    write_tfrecord("train.tfrecord", (example(image, label) for image, label in zip(images, labels)))
"""

import array
import functools
import io
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.errors import TrainerError

INPUTS = ("inputs", "image", "image/encoded", "image_raw", "x")
LABELS = ("labels", "label", "image/class/label", "y")

_RANDOM_ACCESS = {  # as the library's own data source opens it: read-ahead would read what nobody asked for
    "options": "readahead_buffer_size:0,max_parallelism:0",
    "file_reader_buffer_size": 32768,
}
_IMAGE_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
_HEADER = struct.Struct("<QI")  # of a TFRecord: the payload's length, and that length's checksum

_EXAMPLE = """
name: "example.proto" package: "trainer" syntax: "proto3"
message_type {
  name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED }
}
message_type {
  name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED }
}
message_type {
  name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED }
}
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".trainer.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".trainer.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".trainer.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".trainer.Feature" label: LABEL_OPTIONAL }
  }
  field {
    name: "feature" number: 1 type: TYPE_MESSAGE type_name: ".trainer.Features.FeatureEntry"
    label: LABEL_REPEATED
  }
}
message_type {
  name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".trainer.Features" label: LABEL_OPTIONAL }
}
"""  # as a descriptor, so that nothing has to be generated from a .proto file


class FileError(TrainerError, ValueError):
    """A file of examples cannot be used. The message names it, what is wrong, and what is allowed."""


class _WrongExample(ValueError):
    """What is wrong with one record, worded to follow its number."""


class Reader(Protocol):
    """The records of a file, by number; several threads may read at once."""

    def __len__(self) -> int: ...

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        """The records' bytes, in the given order; FileError if one is damaged."""


class TFRecordReader:
    """Knows where each record is, so that they can be read in any order."""

    def __init__(self, path: Path, url: str) -> None:
        self._path = path
        self._url = url
        self._offsets, self._lengths = self._index()

    def __len__(self) -> int:
        return len(self._offsets)

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        records = []
        with self._path.open("rb", buffering=0) as file:  # not kept open: a thousand shards are no rarity
            for number in numbers:
                offset, length = self._offsets[number], self._lengths[number]
                stored = os.pread(file.fileno(), length + 4, offset + _HEADER.size)
                data, checksum = stored[:length], stored[length:]
                if checksum != _masked_crc(data).to_bytes(4, "little"):
                    raise self._damaged(number, offset, "its content does not match its checksum")
                records.append(data)
        return records

    def _index(self) -> tuple["array.array[int]", "array.array[int]"]:
        offsets, lengths = array.array("q"), array.array("q")
        size = self._path.stat().st_size
        with self._path.open("rb", buffering=4096) as file:  # little, as most of what lies between is skipped
            offset = 0
            while offset < size:
                header = file.read(_HEADER.size)
                if len(header) < _HEADER.size:
                    raise self._damaged(len(offsets), offset, "the file ends within its header")
                length, checksum = _HEADER.unpack(header)
                if checksum != _masked_crc(header[:8]):
                    if offset == 0 and header.startswith(b"\x1f\x8b"):
                        raise FileError(
                            f"{self._url} is compressed with gzip, which allows no reading in any order."
                            " Decompress it (gzip -d) first."
                        )
                    raise self._damaged(len(offsets), offset, "its length does not match its checksum")
                end = offset + _HEADER.size + length + 4
                if end > size:
                    raise self._damaged(
                        len(offsets), offset, f"it ends at byte {end} and the file at byte {size}"
                    )
                offsets.append(offset)
                lengths.append(length)
                file.seek(length + 4, os.SEEK_CUR)
                offset = end
        return offsets, lengths

    def _damaged(self, number: int, offset: int, what: str) -> FileError:
        return FileError(
            f"{self._url} is cut short or damaged, or is no TFRecord file:"
            f" record {number}, at byte {offset}: {what}. Write or copy the file again."
        )


class ArrayRecordReader:
    """One reader of the library's, which it says threads may share."""

    def __init__(self, path: Path, url: str) -> None:
        self._path = path
        self._url = url
        self._reader = self._open()
        self._count: int = self._reader.num_records()

    def __len__(self) -> int:
        return self._count

    def read(self, numbers: Sequence[int]) -> list[bytes]:
        if not all(0 <= number < self._count for number in numbers):
            raise IndexError(f"{self._url} has records 0 to {self._count - 1} only")
        try:
            records: list[bytes] = self._reader.read(list(numbers))
        except RuntimeError as error:
            raise FileError(
                f"{self._url} is damaged: record {self._first_damaged(numbers)}: {error}."
                " Write or copy the file again."
            ) from error
        return records

    def _open(self) -> Any:
        from array_record.python import array_record_module

        try:
            reader = array_record_module.ArrayRecordReader(str(self._path), **_RANDOM_ACCESS)
            readable = reader.ok()
        except RuntimeError:
            readable = False
        if not readable:
            raise FileError(
                f"{self._url} is cut short or damaged, or is no ArrayRecord file. Write or copy the file again."
            )
        return reader

    def _first_damaged(self, numbers: Sequence[int]) -> int:
        """The library says where in the file, but not in which of the records it was asked for."""
        for number in numbers:
            try:
                self._open().read([number])
            except RuntimeError:
                return number
        return numbers[0]


class Records:
    """A file whose records are examples, all of one shape and type: those of its first."""

    in_memory = False
    label_names: tuple[str, ...] | None = None

    def __init__(self, url: str, reader: Reader, input_shape: tuple[int, ...]) -> None:
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
            found, expected = (input_.dtype, label.shape), (self._input_type, self._label_shape)
            if found != expected:
                raise FileError(
                    f"{self.url}: record {number} has inputs of type {found[0]} and a label of shape {found[1]},"
                    f" where record 0 has {expected[0]} and {expected[1]}. All records of a file must be alike."
                )
            inputs[row], labels[row] = input_, label
        return inputs, labels

    def _decode(self, number: int, data: bytes) -> tuple[NDArray[Any], NDArray[np.int32]]:
        try:
            return _decode(data, self._input_shape)
        except _WrongExample as error:
            raise FileError(f"{self.url}: record {number} {error}") from error


def image_shape(url: str, reader: Reader) -> tuple[int, ...] | None:
    """Height, width and channels of the first example if it is a JPEG or PNG; None if it is not."""
    if not len(reader):
        return None
    try:
        _, kind, values = _feature(_parse(reader.read([0])[0]), INPUTS)
        if kind != "bytes_list" or len(values) != 1 or not values[0].startswith(_IMAGE_STARTS):
            return None
        image = _open_image(values[0])
    except _WrongExample as error:
        raise FileError(f"{url}: record 0 {error}") from error
    channels = {"1": 1, "L": 1, "LA": 1, "RGBA": 4}.get(image.mode, 1 if image.mode.startswith("I") else 3)
    return (image.height, image.width, channels)


def example(inputs: NDArray[Any] | bytes, label: int | np.integer[Any] | NDArray[Any]) -> bytes:
    """A record. Inputs are an array, or the bytes of a JPEG or PNG; the label is a whole number or an array of them."""
    message = _example_class()()
    feature = message.features.feature["inputs"]
    if isinstance(inputs, bytes):
        feature.bytes_list.value.append(inputs)
    elif inputs.dtype == np.uint8:
        feature.bytes_list.value.append(inputs.tobytes())
    elif inputs.dtype.kind == "f":
        feature.float_list.value.extend(inputs.ravel().tolist())
    elif inputs.dtype.kind in "iub":
        feature.int64_list.value.extend(inputs.astype(np.int64).ravel().tolist())
    else:
        raise TypeError(f"inputs are {inputs.dtype}; allowed are numbers, or the bytes of an image")
    labels = np.asarray(label)
    if labels.dtype.kind not in "iub":
        raise TypeError(f"the label is {labels.dtype}; allowed are whole numbers")
    message.features.feature["labels"].int64_list.value.extend(labels.astype(np.int64).ravel().tolist())
    serialized: bytes = message.SerializeToString()
    return serialized


def write_tfrecord(path: str | Path, examples: Iterable[bytes]) -> None:
    """Write records (see `example`) as a TFRecord file, which appears when it is complete."""
    partial = Path(f"{path}.partial")
    with partial.open("wb") as file:
        for data in examples:
            length = struct.pack("<Q", len(data))
            file.write(length + struct.pack("<I", _masked_crc(length)))
            file.write(data + struct.pack("<I", _masked_crc(data)))
    partial.replace(path)


def write_array_record(path: str | Path, examples: Iterable[bytes]) -> None:
    """Write records (see `example`) as an ArrayRecord file, which appears when it is complete."""
    from array_record.python import array_record_module

    partial = Path(f"{path}.partial")
    writer = array_record_module.ArrayRecordWriter(str(partial), "group_size:1")  # each is read on its own
    try:
        for data in examples:
            writer.write(data)
    finally:
        writer.close()
    partial.replace(path)


def as_int32(values: NDArray[Any]) -> NDArray[np.int32]:
    """The whole numbers as int32; ValueError if one does not fit."""
    limits = np.iinfo(np.int32)
    if values.size and not (limits.min <= values.min() and values.max() <= limits.max):
        raise ValueError(f"{values.min()} to {values.max()}, where int32 is allowed")
    return values.astype(np.int32)


def _decode(data: bytes, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[np.int32]]:
    features = _parse(data)
    return _decode_inputs(features, shape), _decode_label(features)


def _decode_inputs(features: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    name, kind, values = _feature(features, INPUTS)
    count = int(np.prod(shape))
    if kind == "bytes_list":
        if len(values) != 1:
            raise _WrongExample(f"has {len(values)} byte strings in its feature {name}; 1 is allowed.")
        (content,) = values
        if content.startswith(_IMAGE_STARTS):
            return _decode_image(content, shape)
        if len(content) == count:
            return np.frombuffer(content, np.uint8).reshape(shape)
        if len(content) == 4 * count:
            return np.frombuffer(content, "<f4").astype(np.float32, copy=False).reshape(shape)
        raise _WrongExample(
            f"has {len(content)} bytes in its feature {name}, which are no JPEG or PNG; for the input shape {shape},"
            f" {count} (uint8) or {4 * count} (float32) are allowed."
        )
    if len(values) != count:
        raise _WrongExample(
            f"has {len(values)} numbers in its feature {name}; the input shape {shape} takes {count}."
        )
    if kind == "float_list":
        return np.array(values, np.float32).reshape(shape)
    return _whole_numbers(name, values).reshape(shape)


def _decode_label(features: Any) -> NDArray[np.int32]:
    name, kind, values = _feature(features, LABELS)
    if kind != "int64_list" or not len(values):
        raise _WrongExample(f"has no whole number in its feature {name}; an int64_list is allowed.")
    label = _whole_numbers(name, values)
    return label[0, ...] if len(label) == 1 else label


def _whole_numbers(name: str, values: Any) -> NDArray[np.int32]:
    try:
        return as_int32(np.array(values, np.int64))
    except ValueError as error:
        raise _WrongExample(f"has numbers in its feature {name} of {error}.") from error


def _decode_image(content: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    channels = shape[2] if len(shape) == 3 else 1
    mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels)
    if len(shape) not in (2, 3) or mode is None:
        raise _WrongExample(
            f"is an image, which does not fit the input shape {shape}; allowed are (height, width) and (height,"
            " width, channels) with 1, 3 or 4 channels."
        )
    from PIL import Image

    height, width = shape[:2]
    try:
        image = _open_image(content)
        if image.mode.startswith(
            "I"
        ):  # 16 bits a pixel, of which a conversion would clip all but the darkest
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        image = image.convert(mode)
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(image, np.uint8).reshape(shape)
    except (OSError, SyntaxError, ValueError) as error:
        raise _WrongExample(f"is a JPEG or PNG that cannot be decoded: {error}.") from error


def _open_image(content: bytes) -> Any:
    from PIL import Image  # only here: who trains on arrays need not have it

    try:
        return Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _WrongExample(f"is a JPEG or PNG that cannot be decoded: {error}.") from error


def _feature(features: Any, names: Sequence[str]) -> tuple[str, str, Any]:
    """The first of these features that the example has: its name, its kind and its values."""
    for name in names:
        if name in features:  # a look-up would add it
            kind = features[name].WhichOneof("kind")
            if kind is None:
                raise _WrongExample(f"has nothing in its feature {name}.")
            return name, kind, getattr(features[name], kind).value
    found = ", ".join(sorted(features)) or "none"
    raise _WrongExample(f"has none of the features {', '.join(names)}; its features: {found}.")


def _parse(data: bytes) -> Any:
    from google.protobuf.message import DecodeError

    message = _example_class()()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise _WrongExample("is not a tf.train.Example, which is allowed alone.") from error
    return message.features.feature


@functools.cache
def _example_class() -> Any:
    """tf.train.Example, in a pool of its own so that TensorFlow in the same process may define it too."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("trainer.Example"))


def _masked_crc(data: bytes) -> int:
    """TFRecord's checksum: a CRC-32C, rotated and shifted so that it may itself be checksummed."""
    import google_crc32c

    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
