"""The data by name: scikit-learn's handwritten digits, files (files.py), or made up for a benchmark.

To train on data of your own kind, write another `load`; nothing elsewhere knows what the examples are.
"""

import dataclasses
import importlib.util
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trainer.errors import UsageError

log = logging.getLogger("trainer")

Sharding = Literal["auto", "file", "data", "off"]
Gather = Callable[[NDArray[np.int64]], NDArray[np.int64]]

SPLIT_SEED = 1797  # never changes, so that a held-out digit is held out of every run
HELD_OUT = 360
HELD_OUT_EVERY = 10  # of files without others to evaluate on, one example in so many
SYNTHETIC_EXAMPLES = 1024
OPENING_THREADS = 8


class DataError(UsageError):
    """The data is not there, or not what was asked for."""


class Examples(Protocol):
    """Some examples that can be read in any order, by several threads at once.

    Attributes:
        in_memory: reading is copying, which needs no threads of its own.
    """

    @property
    def in_memory(self) -> bool: ...

    def __len__(self) -> int: ...

    def rows(self, indices: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Of so many indices [n]: inputs [n, ...] and labels, [n] or for tokens [n, T]."""


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Examples in memory: inputs [N, ...], labels [N] or [N, T]."""

    inputs: NDArray[Any]
    labels: NDArray[np.int32]
    in_memory: bool = True

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, indices: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        return self.inputs[indices], self.labels[indices]


@dataclasses.dataclass(frozen=True)
class Selected:
    """Some of other examples, by their indices."""

    examples: Examples
    indices: NDArray[np.intp]

    @property
    def in_memory(self) -> bool:
        return self.examples.in_memory

    def __len__(self) -> int:
        return len(self.indices)

    def rows(self, indices: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        return self.examples.rows(self.indices[indices])


@dataclasses.dataclass(frozen=True)
class Split:
    """Examples in one or more files, numbered through from the first file's first.

    Attributes:
        files: None in the place of one that another process reads.
        lengths: how many examples each file has, whoever reads it.
        owners: the process that reads each file; None where every process reads all of them.
    """

    files: tuple[Examples | None, ...]
    lengths: tuple[int, ...]
    owners: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return sum(self.lengths)

    @property
    def in_memory(self) -> bool:
        return all(file is None or file.in_memory for file in self.files)

    @property
    def starts(self) -> NDArray[np.intp]:
        """The number of each file's first example."""
        return np.cumsum([0, *self.lengths[:-1]])

    def rows(self, numbers: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """inputs [n, ...] and labels [n, ...] of examples of files that this process reads."""
        if len(self.files) == 1:
            return self._file(0).rows(numbers)
        places = np.searchsorted(self.starts, numbers, side="right") - 1
        present = np.unique(places)
        if len(present) == 1:
            return self._file(present[0]).rows(numbers - self.starts[present[0]])
        parts = [(places == place, place) for place in present]
        read = [self._file(place).rows(numbers[mask] - self.starts[place]) for mask, place in parts]
        inputs = np.empty((len(numbers), *read[0][0].shape[1:]), read[0][0].dtype)
        labels = np.empty((len(numbers), *read[0][1].shape[1:]), np.int32)
        for (mask, _), (some_inputs, some_labels) in zip(parts, read, strict=True):
            inputs[mask], labels[mask] = some_inputs, some_labels
        return inputs, labels

    def _file(self, place: int) -> Examples:
        file = self.files[place]
        if file is None:
            raise LookupError(f"File {place} is read by another process.")
        return file


@dataclasses.dataclass(frozen=True)
class Share:
    """Which part of every global batch belongs to this process: one piece for each of its devices."""

    process_id: int
    num_processes: int
    local_devices: int

    @property
    def replicas(self) -> int:
        return self.num_processes * self.local_devices


@dataclasses.dataclass(frozen=True)
class Dataset:
    """What a model is trained and evaluated on.

    Attributes:
        input_shape, input_dtype: of one example.
        label_names: one for each class.
        sharding: how the processes divide the examples between them; "auto" is decided.
        shuffle_files: the examples of a file stay together with it: they are shuffled within it, and files
            interleaved.
    """

    train: Split
    held_out: Split
    input_shape: tuple[int, ...]
    input_dtype: np.dtype[Any]
    label_names: tuple[str, ...]
    sharding: Sharding = "data"
    shuffle_files: bool = False


def load(
    data: str,
    held_out: str | None,
    sharding: Sharding,
    shape: tuple[int, ...],
    classes: int,
    share: Share,
    gather: Gather,
    cache: bool,
) -> Dataset:
    """What --data names.

    Args:
        data: "digits", "synthetic", or files (see files.find).
        held_out: files to evaluate on; None: one example in ten of each training file.
        shape, classes: where the data does not say them.
        share: this process's among those that load together.
        gather: see distribute.gather; every process loads at the same time.
        cache: keep in memory what has been read and decoded.

    Raises:
        DataError: there is nothing to train on, or sharding by files is not possible.
        FileError: a file cannot be read.
    """
    if data in ("digits", "synthetic"):
        if sharding == "file":
            raise DataError(
                f"--sharding file is for data in files; {data} is in memory. Choose auto, data or off."
            )
        dataset = digits() if data == "digits" else synthetic(shape, classes)
        return dataclasses.replace(dataset, sharding="off" if sharding == "off" else "data")
    return from_files(data, held_out, sharding, shape, classes, share, gather, cache)


def digits() -> Dataset:
    """The 1,797 digits, of which the same 360 are held out every time. They come with scikit-learn: no download.

    float32 [8, 8, 1] with values in [0, 1]. What sklearn.datasets.load_digits reads is read without it: importing
    scikit-learn takes a process longer than everything else that it imports.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError(
            "The digits come with scikit-learn, which is not here: install it, or choose other --data."
        )
    table = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", np.float32, delimiter=",")
    images = (table[:, :-1] / 16).reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int32)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    train, held_out = order[HELD_OUT:], order[:HELD_OUT]
    names = tuple(str(label) for label in range(10))
    return _in_memory(Arrays(images[train], labels[train]), Arrays(images[held_out], labels[held_out]), names)


def synthetic(shape: tuple[int, ...], classes: int, count: int = SYNTHETIC_EXAMPLES) -> Dataset:
    """Noise around a pattern for each label, the same every time: for benchmarks. It can be learned.

    uint8 images for a shape [H, W, C]; for [T], int32 tokens, in which each follows from the one before it.
    """
    random = np.random.default_rng(0)
    if len(shape) == 1:
        following = random.permutation(classes).astype(np.int32)
        tokens = np.empty((count, shape[0] + 1), np.int32)
        tokens[:, 0] = random.integers(classes, size=count)
        for place in range(shape[0]):
            tokens[:, place + 1] = following[tokens[:, place]]
        examples = Arrays(np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:]))
    else:
        labels = random.integers(classes, size=count, dtype=np.int32)
        patterns = random.integers(128, size=(classes, *shape), dtype=np.uint8)
        images = random.integers(128, size=(count, *shape), dtype=np.uint8)
        images += patterns[labels]
        examples = Arrays(images, labels)
    held_out = count // 8
    train = Arrays(examples.inputs[held_out:], examples.labels[held_out:])
    names = tuple(str(label) for label in range(classes))
    return _in_memory(train, Arrays(examples.inputs[:held_out], examples.labels[:held_out]), names)


def from_files(
    data: str,
    held_out: str | None,
    sharding: Sharding,
    shape: tuple[int, ...],
    classes: int,
    share: Share,
    gather: Gather,
    cache: bool,
) -> Dataset:
    """Examples in files; with --sharding file, a process opens no others than its own."""
    from trainer import files

    urls = files.find(data)
    by_file = files_are_shared_out(sharding, len(urls), share.num_processes)
    mine = urls[share.process_id] if by_file else urls[0]
    shape = files.read_shape(mine) or shape
    opened: dict[str, files.File] = {}

    def split(names: Sequence[str]) -> Split:
        # A few files to evaluate on may be fewer than the processes: then every process opens all of them.
        shared_out = by_file and len(names) >= share.num_processes
        owners = tuple(place % share.num_processes for place in range(len(names))) if shared_out else None

        def file(place: int) -> Examples | None:
            if owners is not None and owners[place] != share.process_id:
                return None
            opened[names[place]] = files.open_file(names[place], input_shape=shape)
            return files.Cached(opened[names[place]]) if cache else opened[names[place]]

        with ThreadPoolExecutor(OPENING_THREADS) as pool:  # what is in a bucket is downloaded here
            return _counted(tuple(pool.map(file, range(len(names)))), owners, gather)

    train = split(urls)
    if by_file and len(urls) % share.num_processes and share.process_id == 0:
        log.warning(
            "%d files do not divide by %d processes: some read more than others, and those with less wait for them. "
            "Better is a multiple, or --sharding data.",
            len(urls),
            share.num_processes,
        )
    train, held = (train, split(files.find(held_out))) if held_out else _without_every_tenth(train)
    _check_all_have_some(train, held, share.num_processes)
    inputs, _ = opened[mine].rows(np.arange(1))
    label_names = opened[mine].label_names or tuple(str(label) for label in range(classes))
    dataset = Dataset(
        train, held, inputs.shape[1:], inputs.dtype, label_names, "file" if by_file else _data_or_off(sharding),
        shuffle_files=sharding in ("auto", "file"),
    )  # fmt: skip
    if by_file:
        _check_all_are_alike(dataset, gather)
    return dataset


def files_are_shared_out(sharding: Sharding, files: int, processes: int) -> bool:
    """Whether each process reads files of its own; AUTO is FILE where there are files enough, and else DATA.

    Raises:
        DataError: FILE is asked for and there are fewer files than processes.
    """
    if sharding == "file" and files < processes:
        raise DataError(
            f"--sharding file gives each of {processes} processes files of its own, and there are {files}: "
            "write more, smaller files, or choose --sharding auto or data."
        )
    return sharding in ("auto", "file") and files >= processes


def _counted(files: tuple[Examples | None, ...], owners: tuple[int, ...] | None, gather: Gather) -> Split:
    """With each file's number of examples, as counted by the process that reads it."""
    lengths = np.array([0 if file is None else len(file) for file in files], np.int64)
    if owners is not None:
        lengths = gather(lengths).max(axis=0)
    return Split(files, tuple(lengths.tolist()), owners)


def _without_every_tenth(split: Split) -> tuple[Split, Split]:
    """What is left to train on, and what is held out: the same examples of each file every time."""
    numbers = [np.arange(length) for length in split.lengths]
    held_out = [file % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 for file in numbers]
    train, held = (
        [file[mask if held else ~mask] for file, mask in zip(numbers, held_out, strict=True)]
        for held in (False, True)
    )

    def part(kept: list[NDArray[np.intp]]) -> Split:
        files = tuple[Examples | None, ...](
            None if file is None else Selected(file, indices)
            for file, indices in zip(split.files, kept, strict=True)
        )
        return Split(files, tuple(len(indices) for indices in kept), split.owners)

    return part(train), part(held)


def _check_all_have_some(train: Split, held_out: Split, processes: int) -> None:
    for split, what in ((train, "train on"), (held_out, "evaluate on")):
        if not len(split):
            raise DataError(
                f"The files leave {len(train)} examples to train on and {len(held_out)} to evaluate on; both take one "
                "at least. (Without --held-out-data, one in ten is held out.)"
            )
        if split.owners is None:
            continue
        counts = np.bincount(split.owners, split.lengths, processes)
        if not counts.all():
            raise DataError(
                f"The files of process {int(np.argmin(counts))} hold no example to {what}. Choose --sharding data, or "
                "fewer, larger files."
            )


def _check_all_are_alike(dataset: Dataset, gather: Gather) -> None:
    """Processes whose files differ in shape would run different steps, and wait for each other for ever."""
    shape = (*dataset.input_shape, 0, 0, 0)[:3]
    described = gather(np.array([*shape, dataset.input_dtype.num, len(dataset.label_names)], np.int64))
    if (described != described[0]).any():
        raise DataError(
            "The files of different processes differ: the shapes, types and numbers of labels are "
            f"{described.tolist()}. Give them all the same."
        )


def _data_or_off(sharding: Sharding) -> Sharding:
    return "off" if sharding == "off" else "data"


def _in_memory(train: Arrays, held_out: Arrays, label_names: tuple[str, ...]) -> Dataset:
    return Dataset(
        Split((train,), (len(train),)),
        Split((held_out,), (len(held_out),)),
        train.inputs.shape[1:],
        train.inputs.dtype,
        label_names,
    )
