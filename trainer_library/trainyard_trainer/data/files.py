"""Files of examples, on a path or in a bucket (gs://): finding them, and random access to their examples.

The format is known by the name: NumPy's .npz, TFRecord, .txt (see text.py), or a folder of images by class, whose name
ends in a slash. To convert arrays or images to records:
python -m trainyard_trainer.files convert SOURCE --to tfrecord --shards 8 OUT_DIR
"""

import atexit
import fnmatch
import functools
import glob
import hashlib
import json
import os
import re
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.data.examples import as_int32
from trainyard_trainer.data.images import ImageFolder, is_image_folder
from trainyard_trainer.data.records import Records, TFRecordReader
from trainyard_trainer.data.text import Text, Tokenizer, read_text
from trainyard_trainer.errors import FileError
from trainyard_trainer.storage import StoredFile, StoredPath, open_bucket, open_folder

ALLOWED = ".npz, .txt, .tfrecord and .tfrecords, the last two also with a shard's number (-00000-of-00010) behind"
LABEL_NAMES = "labels.json"
"""Beside records: a list of the labels' names, which records themselves do not have."""
_FORMATS = {
    "npz": re.compile(r"\.npz$"),
    "txt": re.compile(r"\.txt$"),
    "tfrecord": re.compile(r"\.tfrecords?(-\d+-of-\d+)?$"),
    "images": re.compile(r"/$"),
}
_INPUTS, _LABELS = ("inputs", "images", "x"), ("labels", "y")
_UNREADABLE = (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)
_WILDCARD = re.compile(r"[*?\[]")
_downloads: dict[Path, threading.Lock] = {}
_archives = threading.Lock()
"""To read .npz archives: numpy parses the header of an array by `ast`, and Python before 3.11.8 may raise SystemError
where two threads do (https://github.com/python/cpython/issues/106905)."""


class File(Protocol):
    """At least one example, all of one shape. Thread-safe."""

    url: str
    in_memory: bool
    """Whether `rows` only copies, without reading or decoding."""
    label_names: tuple[str, ...] | None
    """None if the file does not define them."""

    def __len__(self) -> int: ...

    def rows(self, indices: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Inputs (uint8, int32 or float32) [n, ...] and labels [n], or [n, T] where the inputs are tokens."""


def find(patterns: str) -> tuple[str, ...]:
    """The files that match the patterns, sorted, without duplicates.

    Patterns are separated by commas. Each is a file, a directory (its files of known formats, not recursively), a
    folder of images by class, or has wildcards (`*`, `?`, `[..]`, none of which match a `/`), on a path or at gs://...
    """
    matches: set[str] = set()
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        urls = _find_in_bucket(pattern) if pattern.startswith("gs://") else _find_on_path(pattern)
        if not urls:
            raise FileError(
                f"{pattern} finds no file. Allowed is a file, a directory that has files of a known kind in it"
                f" ({ALLOWED}) or images by class (CLASS/NAME.jpg or .png), or a wildcard (*, ?, [..])."
            )
        for url in urls:
            _format(url)
        matches.update(urls)
    if not matches:
        raise FileError(f"{patterns!r} names no file. Separate several by commas.")
    return tuple(sorted(matches))


def open_file(
    url: str,
    *,
    input_shape: tuple[int, ...],
    cache_dir: Path | None = None,
    stream: bool = False,
    tokenizer: Tokenizer | None = None,
) -> File:
    """The examples of a file, whose inputs must be of this shape (images in records are resized to it).

    An object of a bucket is downloaded once, into `cache_dir` (default: a temporary directory of the process). With
    `stream`, a TFRecord object is not: a first pass finds its records, and each is read when it is needed.
    """
    format_ = _format(url)
    if format_ == "images":
        return ImageFolder(url, input_shape)
    if format_ == "tfrecord":
        return Records(url, TFRecordReader(_stored(url, cache_dir, stream), url), input_shape)
    path = _local(url, cache_dir)
    if format_ == "npz":
        return _Npz(url, path, input_shape)
    return Text(url, path, input_shape, tokenizer)


def read_shape(url: str, *, cache_dir: Path | None = None) -> tuple[int, ...] | None:
    """The shape of an example's inputs if the file defines it: if it has arrays. Else None: images are resized.

    Arrays named `images` get a channel axis if they have none. An object of a bucket is downloaded as by `open_file`.
    """
    return _npz_shape(url, _local(url, cache_dir)) if _format(url) == "npz" else None


def read_label_names(url: str) -> tuple[str, ...] | None:
    """The names of LABEL_NAMES beside a file of records; None if there is no such file."""
    data = open_folder(url.rpartition("/")[0]).read(LABEL_NAMES)
    if data is None:
        return None
    try:
        names = json.loads(data)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FileError(f"{LABEL_NAMES} beside {url} is no JSON list of names. Write it again, or remove it.")
    return tuple(names)


class CachedFile:
    """A file whose decoded rows are cached in memory when they are first read."""

    def __init__(self, file: File) -> None:
        self.url = file.url
        self.label_names = file.label_names
        self.in_memory = file.in_memory
        self._file = file
        self._filled = np.zeros(len(file), np.bool_)
        self._missing = len(file)
        self._rows: tuple[NDArray[Any], NDArray[np.int32]] | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._file)

    def rows(self, indices: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        if self._file.in_memory or not len(indices):
            return self._file.rows(indices)
        missing = np.unique(indices[~self._filled[indices]])
        if len(missing):
            inputs, labels = self._file.rows(missing)  # without the lock: threads decode concurrently
            self._store(missing, inputs, labels)
        assert self._rows is not None
        inputs, labels = self._rows
        return inputs[indices], labels[indices]

    def _store(self, indices: NDArray[np.intp], inputs: NDArray[Any], labels: NDArray[np.int32]) -> None:
        with self._lock:
            if self._rows is None:
                self._rows = (
                    np.empty((len(self), *inputs.shape[1:]), inputs.dtype),
                    np.empty((len(self), *labels.shape[1:]), np.int32),
                )
            self._rows[0][indices], self._rows[1][indices] = inputs, labels
            # Two threads may have decoded the same row; it is counted once.
            self._missing -= int(np.count_nonzero(~self._filled[indices]))
            self._filled[indices] = True  # last: readers check it without the lock
            self.in_memory = self._missing == 0


class _Npz:
    """Arrays of an .npz file, in memory."""

    in_memory = True
    label_names: tuple[str, ...] | None = None

    def __init__(self, url: str, path: Path, input_shape: tuple[int, ...]) -> None:
        self.url = url
        _check_archive(url, path)
        try:
            with _archives, np.load(path, allow_pickle=False) as archive:
                inputs = archive[_array_name(url, archive.files, _INPUTS)]
                labels = archive[_array_name(url, archive.files, _LABELS)]
                names = archive["label_names"] if "label_names" in archive.files else None
        except FileError:
            raise
        except _UNREADABLE as error:
            raise _unreadable_npz(url, error) from error
        self._inputs = _numbers(url, "inputs", _in_shape(url, inputs, input_shape))
        if labels.dtype.kind not in "iub":
            raise FileError(f"{url}: labels are {labels.dtype}; allowed are whole numbers.")
        self._labels = _numbers(url, "labels", labels).astype(np.int32, copy=False)
        if labels.shape[:1] != inputs.shape[:1]:
            raise FileError(
                f"{url} has labels of shape {labels.shape} for {len(inputs)} inputs; allowed is one for each."
            )
        if not len(inputs):
            raise FileError(f"{url} has no examples. Remove it, or write it again.")
        if names is not None and (names.ndim != 1 or names.dtype.kind not in "US"):
            raise FileError(
                f"{url}: label_names are {names.dtype} of shape {names.shape}; one axis of strings is allowed."
            )
        if names is not None:
            self.label_names = tuple(name.decode() if isinstance(name, bytes) else name for name in names.tolist())

    def __len__(self) -> int:
        return len(self._labels)

    def rows(self, indices: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        return self._inputs[indices], self._labels[indices]


def _array_name(url: str, names: Sequence[str], allowed: Sequence[str]) -> str:
    for name in allowed:
        if name in names:
            return name
    raise FileError(f"{url} has no array {' or '.join(allowed)}; its arrays: {', '.join(sorted(names)) or 'none'}.")


def _in_shape(url: str, inputs: NDArray[Any], input_shape: tuple[int, ...]) -> NDArray[Any]:
    if len(input_shape) == 3 and input_shape[2] == 1 and inputs.shape[1:] == input_shape[:2]:
        inputs = inputs[..., np.newaxis]
    if inputs.ndim == 0 or inputs.shape[1:] != input_shape:
        raise FileError(
            f"{url} has inputs of shape {inputs.shape[1:]}, the model takes {input_shape}."
            " The first axis counts the examples; the others must be equal."
        )
    return inputs


def _numbers(url: str, what: str, values: NDArray[Any]) -> NDArray[Any]:
    """The array as uint8, int32 or float32."""
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind == "b":
        return values.astype(np.uint8)
    if values.dtype.kind == "f":
        return values.astype(np.float32, copy=False)
    if values.dtype.kind not in "iu":
        raise FileError(f"{url}: {what} are {values.dtype}; allowed are numbers.")
    try:
        return as_int32(values)
    except ValueError as error:
        raise FileError(f"{url}: {what} are {error}.") from error


def _npz_shape(url: str, path: Path) -> tuple[int, ...]:
    """From the header of the array, without loading it."""
    _check_archive(url, path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            array = _array_name(url, names, _INPUTS)
            with archive.open(f"{array}.npy") as member:
                version = np.lib.format.read_magic(member)
                header = np.lib.format
                read = header.read_array_header_1_0 if version == (1, 0) else header.read_array_header_2_0
                shape, _, _ = read(member)
    except FileError:
        raise
    except _UNREADABLE as error:
        raise _unreadable_npz(url, error) from error
    inputs_shape = tuple(int(size) for size in shape[1:])
    return (*inputs_shape, 1) if array == "images" and len(inputs_shape) == 2 else inputs_shape


def _check_archive(url: str, path: Path) -> None:
    if not zipfile.is_zipfile(path):  # numpy would report pickled objects
        raise _unreadable_npz(url, "it is cut short, or is no .npz archive")


def _unreadable_npz(url: str, error: Exception | str) -> FileError:
    return FileError(
        f"{url} cannot be read: {error}. Allowed is a whole .npz archive of arrays of numbers or strings"
        " (numpy.savez), none of Python objects."
    )


def texts(patterns: str) -> Iterator[str]:
    """The contents of the text files that match."""
    for url in find(patterns):
        if not is_text(url):
            raise FileError(f"{url} is no text (.txt), for which alone --tokenizer is.")
        yield read_text(_local(url, None))


def is_text(url: str) -> bool:
    """Whether a file's examples continue each other."""
    return _format(url) == "txt"


def _format(url: str) -> str:
    for format_, name in _FORMATS.items():
        if name.search(url):
            return format_
    raise FileError(f"{url} is of no known kind. Allowed are names that end in {ALLOWED}.")


def _is_known(url: str) -> bool:
    return any(name.search(url) for name in _FORMATS.values())


def _find_on_path(pattern: str) -> list[str]:
    path = Path(pattern).absolute()
    if path.is_file():
        return [str(path)]
    if path.is_dir():
        files = [str(file) for file in path.iterdir() if file.is_file() and _is_known(file.name)]
        return files or ([f"{path}/"] if is_image_folder(str(path)) else [])
    return [file for file in glob.glob(str(path)) if Path(file).is_file()]  # noqa: PTH207 - of absolute patterns


def _find_in_bucket(pattern: str) -> list[str]:
    from google.api_core.exceptions import NotFound

    bucket, _, name = pattern.removeprefix("gs://").partition("/")
    if not bucket:
        raise FileError(f"{pattern} does not name a bucket: gs://BUCKET/FILE.")
    root = open_bucket(bucket)

    def listed(prefix: str, *, below: bool) -> list[str]:
        return [name for name in root.names(prefix, below=below) if not name.endswith("/")]

    try:
        if name and not name.endswith("/") and root.stored(name) is not None:
            names = [name]
        elif wildcard := _WILDCARD.search(name):
            candidates = listed(name[: wildcard.start()], below="/" in name[wildcard.start() :])
            names = [candidate for candidate in candidates if _matches(candidate, name)]
        else:
            directory = f"{name.rstrip('/')}/" if name else ""
            names = [child for child in listed(directory, below=False) if _is_known(child)]
            if not names and is_image_folder(f"gs://{bucket}/{directory}"):
                names = [directory]
    except NotFound:
        names = []  # no such bucket
    return [f"gs://{bucket}/{match}" for match in names]


def _matches(name: str, pattern: str) -> bool:
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _stored(url: str, cache_dir: Path | None, stream: bool) -> StoredFile:
    if not stream or not url.startswith("gs://"):
        return StoredPath(_local(url, cache_dir))
    folder, _, name = url.rpartition("/")
    stored = open_folder(folder).stored(name)
    if stored is None:
        raise FileError(f"{url} is not there.")
    return stored


def _local(url: str, cache_dir: Path | None) -> Path:
    """The local file; an object of a bucket is downloaded unless it is cached."""
    if not url.startswith("gs://"):
        if not Path(url).is_file():
            raise FileError(f"{url} is not there, or is not a file.")
        return Path(url)
    directory = cache_dir or _temporary_cache_dir()
    directory.mkdir(parents=True, exist_ok=True)
    bucket, _, name = url.removeprefix("gs://").partition("/")
    path = directory / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{name.rpartition('/')[2]}"
    with _downloads.setdefault(path, threading.Lock()):  # other files are downloaded concurrently
        if not path.exists():
            partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
            if not open_folder(f"gs://{bucket}").download(name, partial):
                raise FileError(f"{url} is not there.")
            partial.replace(path)
    return path


@functools.cache
def _temporary_cache_dir() -> Path:
    directory = tempfile.TemporaryDirectory(prefix="trainer-files-")
    atexit.register(directory.cleanup)
    return Path(directory.name)
