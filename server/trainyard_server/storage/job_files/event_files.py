"""Scalars and hparams in the event files that TensorBoard's writers leave in a job-dir, read as the files grow.

A file is a sequence of TFRecords: a length with its checksum, a serialized Event with its checksum. TensorBoard's own
messages decode the events; they are imported when a job has a file with some. Records that are larger than a scalar
needs (images, graphs) are skipped unread.
"""

import logging
import re
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from trainyard_protocol.lines.progress import MAX_NAME, MAX_STEP
from trainyard_server.storage.job_files.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable

_FILES = 64  # the newest ones
_DIRECTORIES = 64
_DEPTH = 5
_PAGES = 5  # of one directory
_ARTIFACTS = ("mlflow",)  # files of runs of MLflow, whose metrics are logged: Keras' autologging adds its event files
_READ_BYTES = 16 * 2**20  # in one call
_BLOCK = 2 * 2**20
_JOB_BYTES = 512 * 2**20
_RECORD_BYTES = 2**20
_HPARAMS = 1000
_HPARAM_LENGTH = 500  # of a value, in characters: longer ones are cut
_HPARAM_KINDS = ("bool_value", "number_value", "string_value")
_HPARAMS_TAG = "_hparams_/session_start_info"
_NAME = re.compile(r"\.tfevents\.")
_EVALUATIONS = {"val": "val", "validation": "val", "eval": "eval", "evaluation": "eval", "test": "test"}

_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_TENSORS = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}  # DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64

logger = logging.getLogger(__name__)


class Scalar(NamedTuple):
    """A value with the name of its curve. `time`: seconds since 1970."""

    name: str
    step: int
    value: float
    time: float


class EventFiles:
    """The event files of one job-dir, with the position in each. A name is the tag, with `val_`, `eval_` or `test_`
    where the file lies in a directory of that name, as Keras writes them."""

    def __init__(self) -> None:
        self.hparams: dict[str, str] = {}
        """The values of `add_hparams` and TensorBoard's hparams API in what was read, by their names. The newest value
        of a name counts."""
        self._positions: dict[tuple[str, ...], int | None] = {}  # None: damaged, not read any further
        self._read = 0

    def read(self, tree: Tree) -> tuple[list[Scalar], bool]:
        """The scalars that are new, and whether there are more to read at once. Raises TrainyardError and OSError."""
        scalars: list[Scalar] = []
        budget = min(_READ_BYTES, _JOB_BYTES - self._read)
        more = False
        for path, size in _files(tree):
            position = self._positions.setdefault(path, 0)
            while position is not None and position < size and budget > 0:
                data = tree.read(path, position, min(_BLOCK, size - position))
                budget -= len(data)
                self._read += len(data)
                records, end = _records(data)
                for record in records:
                    if (event := _event(record)) is not None:
                        scalars += _scalars(event, _prefix(path))
                        self._add_hparams(event)
                if end is None:
                    logger.warning("The event file %s is damaged from byte %d on", "/".join(path), position)
                position, begin = None if end is None else position + end, position
                self._positions[path] = position
                if position == begin:
                    break  # the rest of a record is still to be written
            more = more or (position is not None and position < size and budget <= 0)
        return scalars, more and self._read < _JOB_BYTES

    def _add_hparams(self, event: Any) -> None:
        for summary_value in event.summary.value:
            if summary_value.tag == _HPARAMS_TAG:
                for name, value in _hparams(summary_value.metadata.plugin_data.content):
                    if name in self.hparams or len(self.hparams) < _HPARAMS:
                        self.hparams[name] = value


def _files(tree: Tree) -> list[tuple[tuple[str, ...], int]]:
    """Paths and sizes of the newest event files, the oldest of them first; not those among MLflow's artifacts."""
    files: list[tuple[float, tuple[str, ...], int]] = []
    directories: list[tuple[str, ...]] = [()]
    for directory in directories:  # grows meanwhile
        after = ""
        for _ in range(_PAGES):
            page = tree.page(directory, after)
            for entry in page.entries:
                path = (*directory, entry.name)
                if path == _ARTIFACTS:
                    continue
                if entry.kind == "directory" and len(path) < _DEPTH and len(directories) < _DIRECTORIES:
                    directories.append(path)
                elif entry.kind == "file" and _NAME.search(entry.name):
                    updated = entry.updated.timestamp() if entry.updated is not None else 0.0
                    files.append((updated, path, entry.size or 0))
            if not (after := page.more):
                break
    return [(path, size) for _, path, size in sorted(files)[-_FILES:]]


def _prefix(path: tuple[str, ...]) -> str:
    kind = _EVALUATIONS.get(path[-2].lower(), "") if len(path) > 1 else ""
    return f"{kind}_" if kind else ""


def _records(data: bytes) -> tuple[list[bytes], int | None]:
    """The whole records at the beginning of a block, and where the next one begins: behind the block, if a large record
    is skipped. None: the file is damaged."""
    from google_crc32c import value as crc32c

    records: list[bytes] = []
    position = 0
    while len(data) - position >= _LENGTH.size + _CHECKSUM.size:
        head = data[position : position + _LENGTH.size]
        (length,) = _LENGTH.unpack(head)
        begin = position + _LENGTH.size + _CHECKSUM.size
        if _masked(crc32c(head)) != _CHECKSUM.unpack_from(data, position + _LENGTH.size)[0]:
            return records, None
        if length <= _RECORD_BYTES:
            record = data[begin : begin + length]
            if len(data) < begin + length + _CHECKSUM.size:
                break
            if _masked(crc32c(record)) != _CHECKSUM.unpack_from(data, begin + length)[0]:
                return records, None
            records.append(record)
        position = begin + length + _CHECKSUM.size
    return records, position


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _event(record: bytes) -> Any:
    """The event in a record; None if it cannot be decoded."""
    from google.protobuf.message import DecodeError

    try:
        return _parser()(record)
    except DecodeError:
        return None


def _scalars(event: Any, prefix: str) -> Iterator[Scalar]:
    if not 0 <= event.step <= MAX_STEP:
        return
    for summary_value in event.summary.value:
        value = _value(summary_value)
        name = f"{prefix}{summary_value.tag}"
        if value is not None and len(name) <= MAX_NAME and name.isprintable() and summary_value.tag:
            yield Scalar(name, event.step, value, event.wall_time)


def _hparams(content: bytes) -> Iterator[tuple[str, str]]:
    """Names and values of a session that starts; none of what cannot be decoded."""
    from google.protobuf.message import DecodeError
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    try:
        values = HParamsPluginData.FromString(content).session_start_info.hparams
    except DecodeError:
        return
    for name in sorted(values):
        kind = values[name].WhichOneof("kind")
        if not 0 < len(name) <= MAX_NAME or not name.isprintable() or kind not in _HPARAM_KINDS:
            continue
        value = getattr(values[name], kind)
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)  # a number of any type is written as a float
        yield name, str(value)[:_HPARAM_LENGTH]


def _parser() -> "Callable[[bytes], Any]":
    from tensorboard.compat.proto.event_pb2 import Event

    return Event.FromString  # type: ignore[no-any-return]


def _value(summary: Any) -> float | None:
    """The scalar of a summary's value, as the first and the second version of TensorFlow write it."""
    if summary.HasField("simple_value"):
        return float(summary.simple_value)
    if not summary.HasField("tensor"):
        return None
    tensor = summary.tensor
    if any(dimension.size != 1 for dimension in tensor.tensor_shape.dim):
        return None
    form = _TENSORS.get(tensor.dtype)
    if form is not None and len(tensor.tensor_content) == struct.calcsize(form):
        return float(struct.unpack(form, tensor.tensor_content)[0])
    values = [*tensor.float_val, *tensor.double_val, *tensor.int_val, *tensor.int64_val]
    return float(values[0]) if len(values) == 1 else None
