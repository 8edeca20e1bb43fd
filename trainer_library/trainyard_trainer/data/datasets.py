"""The datasets of --data: scikit-learn's handwritten digits, files (files.py) and synthetic examples.

To train on data of another kind, replace `load`; no other module depends on what the examples are.
"""

import dataclasses
import importlib.util
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.data.examples import as_int32
from trainyard_trainer.data.packing import Layout, pack
from trainyard_trainer.errors import TrainerUsageError

if TYPE_CHECKING:
    from trainyard_trainer.data.text import Tokenizer

log = logging.getLogger("trainer")

Sharding = Literal["auto", "file", "data", "off"]
Numbers = NDArray[Any] | Mapping[str, NDArray[Any]]
Layouts = tuple[Layout, Layout]  # of inputs, and of labels
Gather = Callable[[NDArray[np.int64]], NDArray[np.int64]]

SPLIT_SEED = 1797  # constant, so that the same digits are held out in every run
HELD_OUT = 360
HELD_OUT_EVERY = 10  # one example in so many is held out, unless --held-out-data names files
SYNTHETIC_EXAMPLES = 1024
OPENING_THREADS = 8


class DataError(TrainerUsageError):
    """The data is missing or does not fit the flags."""


class Examples(Protocol):
    """Random access to examples. Thread-safe.

    Attributes:
        in_memory: reading only copies, so that it needs no prefetching threads.
    """

    @property
    def in_memory(self) -> bool: ...

    def __len__(self) -> int: ...

    def rows(self, indices: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Inputs [n, ...] and labels, [n] or for tokens [n, T], of indices [n]."""


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
    """A subset of other examples, by index."""

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
    """Examples in one or more files, numbered consecutively across the files.

    Attributes:
        files: None for a file that another process reads.
        lengths: number of examples of each file, also of those of other processes.
        owners: the process that reads each file; None if every process reads all of them.
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
        """Inputs [n, ...] and labels [n, ...]; all examples must be in files that this process reads."""
        if len(self.files) == 1:
            return self._file(0).rows(numbers)
        file_of = np.searchsorted(self.starts, numbers, side="right") - 1
        present = np.unique(file_of)
        if len(present) == 1:
            return self._file(present[0]).rows(numbers - self.starts[present[0]])
        parts = [(file_of == file, file) for file in present]
        read = [self._file(file).rows(numbers[mask] - self.starts[file]) for mask, file in parts]
        inputs = np.empty((len(numbers), *read[0][0].shape[1:]), read[0][0].dtype)
        labels = np.empty((len(numbers), *read[0][1].shape[1:]), np.int32)
        for (mask, _), (some_inputs, some_labels) in zip(parts, read, strict=True):
            inputs[mask], labels[mask] = some_inputs, some_labels
        return inputs, labels

    def description(self, number: int) -> str:
        """The place of an example, for a message."""
        index = int(np.searchsorted(self.starts, number, side="right") - 1)
        file, number = self._file(index), int(number - self.starts[index])
        if isinstance(file, Selected):
            number, file = int(file.indices[number]), file.examples
        url = getattr(file, "url", None)
        return f"example {number}" + (f" of {url}" if url else "")

    def _file(self, index: int) -> Examples:
        file = self.files[index]
        if file is None:
            raise LookupError(f"File {index} is read by another process.")
        return file


@dataclasses.dataclass(frozen=True)
class Shard:
    """This process's part of each global batch: one piece for each of its devices."""

    process_id: int
    num_processes: int
    local_devices: int

    @property
    def replicas(self) -> int:
        return self.num_processes * self.local_devices


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Training and held-out examples.

    Attributes:
        input_shape, input_dtype: of one example.
        label_names: one for each class.
        sharding: how the processes divide the examples; never "auto".
        layouts: of inputs and labels that are several arrays: see packing.py.
        shuffle_files: shuffle within each file and interleave the files, instead of shuffling all examples.
    """

    train: Split
    held_out: Split
    input_shape: tuple[int, ...]
    input_dtype: np.dtype[Any]
    label_names: tuple[str, ...]
    sharding: Sharding = "data"
    shuffle_files: bool = False
    layouts: Layouts = ((), ())


def load(
    data: str,
    held_out: str | None,
    sharding: Sharding,
    shape: tuple[int, ...],
    classes: int,
    shard: Shard,
    gather: Gather,
    cache: bool,
    stream: bool = False,
    tokenizer: "Tokenizer | None" = None,
) -> Dataset:
    """Load the dataset of --data; all processes call this together. With --sharding file each opens its own files.

    Args:
        data: "digits", "synthetic", or files (see files.find).
        held_out: files to evaluate on; None: one example in ten of each training file.
        shape, classes: used if the data does not define them.
        gather: see distribute.gather.
        cache: keep decoded examples in memory.
        stream, tokenizer: see files.open_file.

    Raises:
        DataError: there are no examples, or too few files for --sharding file.
        FileError: a file cannot be read.
    """
    if data in ("digits", "synthetic"):
        return in_memory(data, digits() if data == "digits" else synthetic(shape, classes), sharding)
    from trainyard_trainer.data import files
    from trainyard_trainer.data.text import BYTES, printable

    urls = files.find(data)
    by_file = shards_by_file(sharding, len(urls), shard.num_processes)
    first = urls[shard.process_id] if by_file else urls[0]
    shape = files.read_shape(first) or shape
    opened: dict[str, files.File] = {}

    def split(names: Sequence[str]) -> Split:
        # If there are fewer held-out files than processes, every process opens all of them.
        divided = by_file and len(names) >= shard.num_processes
        owners = tuple(index % shard.num_processes for index in range(len(names))) if divided else None

        def file(index: int) -> Examples | None:
            if owners is not None and owners[index] != shard.process_id:
                return None
            opened[names[index]] = files.open_file(names[index], input_shape=shape, stream=stream, tokenizer=tokenizer)
            return files.CachedFile(opened[names[index]]) if cache else opened[names[index]]

        with ThreadPoolExecutor(OPENING_THREADS) as pool:  # downloads the objects of buckets
            return _counted(tuple(pool.map(file, range(len(names)))), owners, gather)

    train = split(urls)
    if by_file and len(urls) % shard.num_processes and shard.process_id == 0:
        log.warning(
            "%d files cannot be divided evenly between %d processes: those with fewer examples wait for the others. "
            "Use a multiple of the number of processes, or --sharding data.",
            len(urls),
            shard.num_processes,
        )
    train, held = (train, split(files.find(held_out))) if held_out else _hold_out(train, files.is_text(first))
    try:
        _check_not_empty(train, held, shard.num_processes)
    except DataError:
        if sharding != "auto" or not by_file or shard.num_processes == 1:
            raise
        # All processes know all lengths, so all of them choose this.
        log.info("Some process would have no example of its own files: --sharding auto chooses data.")
        dataset = load(data, held_out, "data", shape, classes, shard, gather, cache, stream, tokenizer)
        return dataclasses.replace(dataset, shuffle_files=True)
    inputs, _ = opened[first].rows(np.arange(1))
    classes = BYTES if files.is_text(first) and tokenizer is None else classes
    label_names = opened[first].label_names or files.read_label_names(first) or printable(tokenizer, classes)
    for name, file in opened.items():
        if file.label_names not in (None, label_names):
            raise DataError(
                f"{name} has the labels {', '.join(file.label_names or ())}; {first} has {', '.join(label_names)}. "
                "All files must have the same."
            )
    dataset = Dataset(
        train, held, inputs.shape[1:], inputs.dtype, label_names, "file" if by_file else _data_or_off(sharding),
        shuffle_files=sharding in ("auto", "file"),
    )  # fmt: skip
    if by_file:
        _check_same_shapes(dataset, gather)
    return dataset


def from_arrays(
    inputs: Numbers,
    labels: Numbers,
    held_out_inputs: Numbers,
    held_out_labels: Numbers,
    label_names: Iterable[object] = (),
) -> Dataset:
    """Examples in memory, as the `data` of a task.

    Args:
        inputs: [N, ...], of uint8 (images, scaled to [0, 1]), other whole numbers (int32) or floats (float32). A dict
            of several arrays is a dict for the network, too.
        labels: [N, ...]: classes as whole numbers, or floats, which need no names. A dict of several arrays is a dict
            for the loss and the metrics.
        label_names: one for each class, such as np.unique(labels); none if labels are not classes.

    Raises:
        DataError: they are not arrays of numbers, or not one label for each of the inputs.
    """
    train, layouts = _paired("training", inputs, labels)
    held_out, others = _paired("held-out", held_out_inputs, held_out_labels)
    if layouts != others:
        raise DataError("The held-out data has other names, shapes or types than the training data.")
    for what in ("inputs", "labels"):
        expected, given = (
            f"{part.dtype} {list(part.shape[1:])}" for part in (getattr(train, what), getattr(held_out, what))
        )
        if expected != given:
            raise DataError(
                f"The held-out {what} are {given} each, and those of training {expected}: both must be alike."
            )
    return dataclasses.replace(_in_memory(train, held_out, tuple(map(str, label_names))), layouts=layouts)


def in_memory(name: str, dataset: Dataset, sharding: Sharding) -> Dataset:
    """A dataset in memory with the policy of --sharding.

    Raises:
        DataError: sharding is "file".
    """
    if sharding == "file":
        raise DataError(f"--sharding file is for data in files; {name} is in memory. Choose auto, data or off.")
    return dataclasses.replace(dataset, sharding=_data_or_off(sharding))


def digits() -> Dataset:
    """The 1,797 digits of scikit-learn, float32 [8, 8, 1] in [0, 1]; always the same 360 are held out.

    The file of sklearn.datasets.load_digits is read directly, because importing scikit-learn is slow.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError(
            "The digits come with scikit-learn, which is not installed: install it, or choose other --data."
        )
    table = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", np.float32, delimiter=",")
    images = (table[:, :-1] / 16).reshape(-1, 8, 8, 1)
    labels = table[:, -1].astype(np.int32)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    train, held_out = order[HELD_OUT:], order[:HELD_OUT]
    names = tuple(str(label) for label in range(10))
    return _in_memory(Arrays(images[train], labels[train]), Arrays(images[held_out], labels[held_out]), names)


def synthetic(shape: tuple[int, ...], classes: int, count: int = SYNTHETIC_EXAMPLES) -> Dataset:
    """Deterministic, learnable examples for benchmarks.

    For a shape [H, W, C], uint8 images of noise around a pattern for each label; for [T], int32 tokens, each a function
    of the previous one.
    """
    random = np.random.default_rng(0)
    if len(shape) == 1:
        successor = random.permutation(classes).astype(np.int32)
        tokens = np.empty((count, shape[0] + 1), np.int32)
        tokens[:, 0] = random.integers(classes, size=count)
        for position in range(shape[0]):
            tokens[:, position + 1] = successor[tokens[:, position]]
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


def shards_by_file(sharding: Sharding, files: int, processes: int) -> bool:
    """Whether each process reads its own files; "auto" means "file" if there are enough files, else "data".

    Raises:
        DataError: sharding is "file" and there are fewer files than processes.
    """
    if sharding == "file" and files < processes:
        raise DataError(
            f"--sharding file needs at least one file for each of {processes} processes, and there are {files}: "
            "write more, smaller files, or choose --sharding auto or data."
        )
    return sharding in ("auto", "file") and files >= processes


def _counted(files: tuple[Examples | None, ...], owners: tuple[int, ...] | None, gather: Gather) -> Split:
    """A split with the number of examples of each file, counted by the process that reads it."""
    lengths = np.array([0 if file is None else len(file) for file in files], np.int64)
    if owners is not None:
        lengths = gather(lengths).max(axis=0)
    return Split(files, tuple(lengths.tolist()), owners)


def _hold_out(split: Split, continuous: bool) -> tuple[Split, Split]:
    """Training and held-out examples: always the same tenth of each file is held out.

    It is every tenth example, or the end of a file whose examples continue each other, such as text: elsewhere held-out
    text would stand between training text.
    """
    numbers = [np.arange(length) for length in split.lengths]
    if continuous:
        held_out = [file >= len(file) - len(file) // HELD_OUT_EVERY for file in numbers]
    else:
        held_out = [file % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 for file in numbers]
    train, held = (
        [file[mask if held else ~mask] for file, mask in zip(numbers, held_out, strict=True)] for held in (False, True)
    )

    def part(selected: list[NDArray[np.intp]]) -> Split:
        files = tuple[Examples | None, ...](
            None if file is None else Selected(file, indices)
            for file, indices in zip(split.files, selected, strict=True)
        )
        return Split(files, tuple(len(indices) for indices in selected), split.owners)

    return part(train), part(held)


def _check_not_empty(train: Split, held_out: Split, processes: int) -> None:
    for split, what in ((train, "train on"), (held_out, "evaluate on")):
        if not len(split):
            raise DataError(
                f"The files have {len(train)} examples to train on and {len(held_out)} to evaluate on; both need at "
                "least one. (Without --held-out-data, one in ten is held out.)"
            )
        if split.owners is None:
            continue
        counts = np.bincount(split.owners, split.lengths, processes)
        if not counts.all():
            raise DataError(
                f"The files of process {int(np.argmin(counts))} have no example to {what}. Choose --sharding data, or "
                "fewer, larger files."
            )


def _check_same_shapes(dataset: Dataset, gather: Gather) -> None:
    """Processes whose files differ in shape would compile different steps and deadlock."""
    shape = (*dataset.input_shape, 0, 0, 0)[:3]
    described = gather(np.array([*shape, dataset.input_dtype.num, len(dataset.label_names)], np.int64))
    if (described != described[0]).any():
        raise DataError(
            "The files of different processes differ: shapes, types and numbers of labels are "
            f"{described.tolist()}. All files must have the same."
        )


def _data_or_off(sharding: Sharding) -> Sharding:
    return "off" if sharding == "off" else "data"


def _paired(what: str, inputs: Numbers, labels: Numbers) -> tuple[Arrays, Layouts]:
    packed_inputs, input_layout = _packed(f"{what} inputs", inputs)
    packed_labels, label_layout = _packed(f"{what} labels", labels)
    if not len(packed_inputs) == len(packed_labels) > 0:
        raise DataError(
            f"The {what} data has {len(packed_inputs)} inputs and {len(packed_labels)} labels; each needs one of the "
            "other, and there must be at least one."
        )
    if packed_labels.dtype == np.uint8 and not label_layout:
        packed_labels = packed_labels.astype(np.int32)
    return Arrays(packed_inputs, packed_labels), (input_layout, label_layout)


def _packed(what: str, values: Numbers) -> tuple[NDArray[Any], Layout]:
    if not isinstance(values, Mapping):
        return _as_jax(what, values), ()
    arrays = {name: _as_jax(f"{what} {name!r}", array) for name, array in values.items()}
    if len({len(array) for array in arrays.values()}) != 1:
        sizes = ", ".join(f"{len(array)} of {name!r}" for name, array in arrays.items())
        raise DataError(f"The {what} are {sizes or 'none'}; each example needs one of all.")
    return pack(arrays)


def _as_jax(what: str, values: Any) -> NDArray[Any]:
    """An array in the types that JAX computes with: uint8 as it is, int32, float32."""
    if isinstance(values, tuple) and any(np.ndim(value) if hasattr(value, "shape") else 0 for value in values):
        raise DataError(
            f"The {what} are a tuple of {len(values)} arrays. Several arrays are a dict by names of your choice, such "
            'as {"image": images, "age": ages}, and the network gets a dict with the same.'
        )
    try:
        array = np.asarray(values)
    except ValueError as error:  # lists of several lengths
        raise DataError(
            f"The {what} are a {type(values).__name__} of examples of several shapes; all must have one: pad or cut "
            f"them. ({error})"
        ) from error
    if not array.ndim or array.dtype.kind not in "fiub":
        raise DataError(f"The {what} are a {type(values).__name__} of {array.dtype}; allowed is an array of numbers.")
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    try:
        return array if array.dtype == np.uint8 else as_int32(array)
    except ValueError as error:
        raise DataError(f"The {what} are {error}.") from error


def _in_memory(train: Arrays, held_out: Arrays, label_names: tuple[str, ...]) -> Dataset:
    return Dataset(
        Split((train,), (len(train),)),
        Split((held_out,), (len(held_out),)),
        train.inputs.shape[1:],
        train.inputs.dtype,
        label_names,
    )
