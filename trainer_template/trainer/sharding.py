"""Who reads which example in which step.

An epoch has an order of all examples, the same in every process, on any number of them and after every restart: step
by step, the next so many of it are the global batch. Which process reads an example of the batch is the sharding
policy's:

    DATA  the batch is cut into equal pieces, one a process; every process has access to all files
    FILE  a process reads the examples of its own files, of which the order takes evenly from each
    OFF   no sharding: each process has an order of all examples of its own, so an epoch reads each once a process

(AUTO is decided when the data is loaded.) So a job goes on at the exact example even on another number of replicas.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data import DataError, Dataset, Share, Split

Numbers = NDArray[np.int64]  # of examples: see data.Split

READING_THREADS = 4


@dataclasses.dataclass(frozen=True)
class Batch:
    """This process's part of one step, by local device (L) and example (B).

    Attributes:
        inputs: [L, B, ...].
        labels: int32 [L, B] or, for tokens, [L, B, T].
        weights: float32 [L, B]; 1 for an example, 0 for padding.
        examples: how many examples the step has over all processes, padding not counted.
        advance: how far the step goes in the order.
    """

    inputs: Any
    labels: Any
    weights: Any
    examples: int
    advance: int


def epoch_order(dataset: Dataset, share: Share, seed: int, epoch: int) -> Numbers:
    """The training examples' numbers in the order of an epoch."""
    lengths = dataset.train.lengths
    if dataset.sharding == "off":
        return np.random.default_rng([seed, epoch, share.process_id]).permutation(len(dataset.train))
    if not dataset.shuffle_files or len(lengths) == 1:
        return np.random.default_rng([seed, epoch]).permutation(len(dataset.train))
    orders = [np.random.default_rng([seed, epoch, n]).permutation(length) for n, length in enumerate(lengths)]
    return _interleaved(dataset.train, orders)


def plain_order(split: Split) -> Numbers:
    """Numbers of all examples, unshuffled, so that each process has something to do all the time."""
    if split.owners is None:
        return np.arange(len(split))
    return _interleaved(split, [np.arange(length) for length in split.lengths])


def steps_for(examples: int, batch_size: int, share: Share, off: bool) -> int:
    """How many steps it takes to go through so much of the order. `batch_size` is a replica's."""
    return -(-examples // _advance(batch_size, share, off))


class Batches:
    """This process's part of each global batch of an order: a sequence, of which any element can be made at any time.

    Every process gets the same number of batches, all of the same shape, and over all processes each example of the
    order occurs once: what does not fill a batch is padding of weight 0, a repetition of other examples. (Processes
    with unequal numbers of steps would wait for each other for ever.)
    """

    def __init__(
        self,
        split: Split,
        order: Numbers,
        batch_size: int,
        share: Share,
        classes: int,
        off: bool = False,
    ) -> None:
        """`batch_size` is a replica's. Where it is off, the order is this process's own."""
        self._split, self._order, self._share, self._off = split, order, share, off
        self._classes = classes
        self._advance = _advance(batch_size, share, off)
        self._steps = steps_for(len(order), batch_size, share, off)
        self._owners: NDArray[np.intp] | None = None
        self.padded_batch_size = batch_size
        if split.owners is not None and not off and len(order):
            owner_of_file = np.asarray(split.owners)
            files = np.searchsorted(split.starts, order, side="right") - 1
            self._owners = owner_of_file[files]
            # The most that a process has of one batch: as many as it is to have, where the files are equal.
            steps = np.arange(len(order)) // self._advance
            counts = np.bincount(steps * share.num_processes + self._owners)
            self.padded_batch_size = -(-int(counts.max()) // share.local_devices)

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> Batch:
        if not 0 <= step < self._steps:
            raise IndexError(step)
        window = self._order[step * self._advance : (step + 1) * self._advance]
        size = self._share.local_devices * self.padded_batch_size
        if self._off:
            mine, examples = window, len(window) * self._share.num_processes
        else:
            mine, examples = self._mine(window, step, size), len(window)
        if len(mine) == size:
            rows, weights = mine, np.ones(size, np.float32)
        else:  # where this process has nothing in the batch, any example that it can read will do
            filler = mine if len(mine) else self._readable()
            rows = np.concatenate([mine, np.resize(filler, size - len(mine))])
            weights = (np.arange(size) < len(mine)).astype(np.float32)
        inputs, labels = self._split.rows(rows)
        if labels.view(np.uint32).max() >= self._classes:  # as an unsigned number, one below 0 is large
            raise DataError(
                f"The data has labels from {labels.min()} to {labels.max()}; with {self._classes} classes they are 0 "
                f"to {self._classes - 1}. Give --classes."
            )
        by_device = (self._share.local_devices, self.padded_batch_size)
        return Batch(
            inputs.reshape(*by_device, *inputs.shape[1:]),
            labels.reshape(*by_device, *labels.shape[1:]),
            weights.reshape(by_device),
            examples,
            len(window),
        )

    def _mine(self, window: Numbers, step: int, size: int) -> Numbers:
        if self._owners is None:
            mine: Numbers = window[self._share.process_id * size : (self._share.process_id + 1) * size]
        else:
            owners = self._owners[step * self._advance : step * self._advance + len(window)]
            mine = window[owners == self._share.process_id]
        return mine

    def _readable(self) -> Numbers:
        """The number of one example that this process can read: the same wherever in an epoch training goes on."""
        readable = np.asarray(self._split.lengths) > 0
        if self._split.owners is not None:
            readable &= np.asarray(self._split.owners) == self._share.process_id
        first: Numbers = self._split.starts[readable][:1]
        return first


def read(batches: Batches, in_memory: bool) -> Iterator[Batch]:
    """All batches in their order. Those that take more than copying are made by threads, some ahead of their use."""
    if in_memory:
        return (batches[step] for step in range(len(batches)))
    import grain  # half a second, which only data in files needs

    options = grain.ReadOptions(num_threads=READING_THREADS, prefetch_buffer_size=2 * READING_THREADS)
    dataset: Iterator[Batch] = iter(grain.MapDataset.source(batches).to_iter_dataset(options))
    return dataset


def _interleaved(split: Split, orders: list[Numbers]) -> Numbers:
    """Each file's examples in its order, spread evenly: number i of n stands at (i + 1/2) / n of the way."""
    numbers = np.concatenate([start + order for start, order in zip(split.starts, orders, strict=True)])
    places = np.concatenate([(np.arange(length) + 0.5) / length for length in split.lengths if length])
    return numbers[np.argsort(places, kind="stable")]


def _advance(batch_size: int, share: Share, off: bool) -> int:
    return batch_size * (share.local_devices if off else share.replicas)
