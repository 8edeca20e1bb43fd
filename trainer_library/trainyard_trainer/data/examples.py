"""tf.train.Example messages without TensorFlow: encoding and decoding.

The inputs are the feature `inputs`, `image`, `image/encoded`, `image_raw` or `x`: a JPEG or PNG, the bytes of an array
(uint8, or little-endian float32), floats or integers. The label is the feature `labels`, `label`, `image/class/label`
or `y`: one integer or several.
"""

import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.data.images import InvalidImage, decode_image, is_image

INPUTS = ("inputs", "image", "image/encoded", "image_raw", "x")
LABELS = ("labels", "label", "image/class/label", "y")

_making = threading.Lock()


class InvalidExample(ValueError):
    """A record that cannot be used; the message is written to follow the record's number."""


def example(inputs: NDArray[Any] | bytes, label: int | np.integer[Any] | NDArray[Any]) -> bytes:
    """A serialized tf.train.Example of an array or an encoded JPEG or PNG, and a label or an array of labels."""
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


def as_int32(values: NDArray[Any]) -> NDArray[np.int32]:
    """Integers as int32; ValueError if one does not fit."""
    limits = np.iinfo(np.int32)
    if values.size and not (limits.min <= values.min() and values.max() <= limits.max):
        raise ValueError(f"{values.min()} to {values.max()}, where int32 is allowed")
    return values.astype(np.int32)


def decode(data: bytes, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Inputs of this shape (images are resized) and label; InvalidExample if the record has none."""
    features = _parse(data)
    return _decode_inputs(features, shape), _decode_label(features)


def _decode_inputs(features: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    name, kind, values = _feature(features, INPUTS)
    count = int(np.prod(shape))
    if kind == "bytes_list":
        if len(values) != 1:
            raise InvalidExample(f"has {len(values)} byte strings in its feature {name}; 1 is allowed.")
        (content,) = values
        if is_image(content):
            try:
                return decode_image(content, shape)
            except InvalidImage as error:
                raise InvalidExample(str(error)) from error
        if len(content) == count:
            return np.frombuffer(content, np.uint8).reshape(shape)
        if len(content) == 4 * count:
            return np.frombuffer(content, "<f4").astype(np.float32, copy=False).reshape(shape)
        raise InvalidExample(
            f"has {len(content)} bytes in its feature {name}, which are no JPEG or PNG; for the input shape {shape},"
            f" {count} (uint8) or {4 * count} (float32) are allowed."
        )
    if len(values) != count:
        raise InvalidExample(f"has {len(values)} numbers in its feature {name}; the input shape {shape} takes {count}.")
    if kind == "float_list":
        return np.array(values, np.float32).reshape(shape)
    return _whole_numbers(name, values).reshape(shape)


def _decode_label(features: Any) -> NDArray[np.int32]:
    name, kind, values = _feature(features, LABELS)
    if kind != "int64_list" or not len(values):
        raise InvalidExample(f"has no whole number in its feature {name}; an int64_list is allowed.")
    label = _whole_numbers(name, values)
    return label[0, ...] if len(label) == 1 else label


def _whole_numbers(name: str, values: Any) -> NDArray[np.int32]:
    try:
        return as_int32(np.array(values, np.int64))
    except ValueError as error:
        raise InvalidExample(f"has numbers in its feature {name} of {error}.") from error


def _feature(features: Any, names: Sequence[str]) -> tuple[str, str, Any]:
    """The first of these features that the example has: name, kind and values."""
    for name in names:
        if name in features:  # indexing would add it
            kind = features[name].WhichOneof("kind")
            if kind is None:
                raise InvalidExample(f"has nothing in its feature {name}.")
            return name, kind, getattr(features[name], kind).value
    present = ", ".join(sorted(features)) or "none"
    raise InvalidExample(f"has none of the features {', '.join(names)}; its features: {present}.")


def _parse(data: bytes) -> Any:
    from google.protobuf.message import DecodeError

    message = _example_class()()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise InvalidExample("is not a tf.train.Example, which is allowed alone.") from error
    return message.features.feature


def _example_class() -> Any:
    """tf.train.Example, made once: protobuf crashes where threads make it at the same time."""
    with _making:
        return _make_example_class()


@functools.cache
def _make_example_class() -> Any:
    """tf.train.Example, built without a .proto file, in its own pool, so that TensorFlow can define it too."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    of = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="trainer", syntax="proto3")
    feature, features, whole = (file.message_type.add(name=name) for name in ("Feature", "Features", "Example"))
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(
        (("Bytes", of.TYPE_BYTES), ("Float", of.TYPE_FLOAT), ("Int64", of.TYPE_INT64)), start=1
    ):
        values = file.message_type.add(name=f"{name}List")
        values.field.add(name="value", number=1, type=kind, label=of.LABEL_REPEATED)
        feature.field.add(
            name=f"{name.lower()}_list", number=number, type=of.TYPE_MESSAGE, type_name=f".trainer.{name}List",
            oneof_index=0,
        )  # fmt: skip
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=of.TYPE_STRING)
    entry.field.add(name="value", number=2, type=of.TYPE_MESSAGE, type_name=".trainer.Feature")
    features.field.add(
        name="feature", number=1, type=of.TYPE_MESSAGE, type_name=".trainer.Features.FeatureEntry",
        label=of.LABEL_REPEATED,
    )  # fmt: skip
    whole.field.add(name="features", number=1, type=of.TYPE_MESSAGE, type_name=".trainer.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("trainer.Example"))
