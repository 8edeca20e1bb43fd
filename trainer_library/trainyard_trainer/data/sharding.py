"""Assignment of examples to steps and processes.

An epoch has one order of all examples, which depends only on the seed and the epoch, not on the number of processes.
Each step consumes the next global batch of it, so a job resumes at the exact example on any number of replicas. The
sharding policy assigns the examples of a global batch to processes ("auto" is resolved when the data is loaded):

    data  the batch is cut into equal pieces, one for each process; every process has access to all files
    file  a process reads the examples of its own files; the order mixes all files evenly
    off   no sharding: each process reads all examples in its own order, so an epoch reads each once per process
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.data.datasets import DataError, Dataset, Shard, Split

Numbers = NDArray[np.int64]  # of examples: see data.Split
Augment = Callable[[NDArray[Any], Numbers], NDArray[Any]]

READING_THREADS = 4
_NO_LEAKS = "ignore::UserWarning:multiprocessing.resource_tracker"  # of semaphores, as this process ends at once


@dataclasses.dataclass(frozen=True)
class Batch:
    """This process's part of one step, by local device (L) and example (B).

    Attributes:
        inputs: [L, B, ...].
        labels: int32 [L, B] or, for tokens, [L, B, T].
        weights: float32 [L, B]; 1 for an example, 0 for padding.
        examples: number of examples of the step over all processes, without padding.
        advance: number of examples of the order that the step consumes.
    """

    inputs: Any
    labels: Any
    weights: Any
    examples: int
    advance: int


def epoch_order(dataset: Dataset, shard: Shard, seed: int, epoch: int) -> Numbers:
    """The numbers of the training examples in the order of an epoch."""
    lengths = dataset.train.lengths
    if dataset.sharding == "off":
        return np.random.default_rng([seed, epoch, shard.process_id]).permutation(len(dataset.train))
    if not dataset.shuffle_files or len(lengths) == 1:
        return np.random.default_rng([seed, epoch]).permutation(len(dataset.train))
    orders = [np.random.default_rng([seed, epoch, n]).permutation(length) for n, length in enumerate(lengths)]
    return _interleaved(dataset.train, orders)


def plain_order(split: Split) -> Numbers:
    """Numbers of all examples, unshuffled, with the files interleaved so that no process idles."""
    if split.owners is None:
        return np.arange(len(split))
    return _interleaved(split, [np.arange(length) for length in split.lengths])


def steps_for(examples: int, batch_size: int, shard: Shard, off: bool) -> int:
    """Number of steps that consume so many examples. `batch_size` is per replica."""
    return -(-examples // _advance(batch_size, shard, off))


class Batches:
    """This process's part of each global batch of an order, as a random-access sequence.

    Every process gets the same number of batches of the same shape, as others would wait for it forever otherwise.
    Over all processes each example of the order occurs once. Batches are padded with the examples that come next in the
    order, after its end with the first, of weight 0: BatchNorm, which knows no weights, sees an ordinary batch.
    """

    def __init__(
        self,
        split: Split,
        order: Numbers,
        batch_size: int,
        shard: Shard,
        classes: int,
        off: bool = False,
        augment: Augment | None = None,
        done: int = 0,
    ) -> None:
        """The batches of a whole order after the `done` examples that were read of it.

        Args:
            batch_size: per replica.
            off: the order is of this process only.
            augment: changes the inputs.
        """
        self._split, self._order, self._shard, self._off = split, order, shard, off
        self._classes, self._augment, self._done = classes, augment, done
        self._advance = _advance(batch_size, shard, off)
        self._steps = steps_for(len(order) - done, batch_size, shard, off)
        self._own = order  # what this process can read of it, at these positions (None: all)
        self._positions: NDArray[np.intp] | None = None
        self.padded_batch_size = batch_size
        # Weights of a batch without padding.
        self._ones = np.ones(shard.local_devices * batch_size, np.float32)
        if split.owners is not None and shard.num_processes > 1 and not off and len(order):
            owner_of_file = np.asarray(split.owners)
            files = np.searchsorted(split.starts, order, side="right") - 1
            owners = owner_of_file[files]
            self._positions = np.flatnonzero(owners == shard.process_id)
            self._own = order[self._positions]
            # The maximum that a process has of one batch; equal to the batch size if the files are equal. Also of those
            # before `done`: a resumed training computes on the shapes of an uninterrupted one.
            steps = (np.arange(len(order)) - done) // self._advance
            counts = np.bincount((steps - steps[0]) * shard.num_processes + owners)
            self.padded_batch_size = -(-int(counts.max()) // shard.local_devices)
            self._ones = np.ones(shard.local_devices * self.padded_batch_size, np.float32)

    @property
    def in_memory(self) -> bool:
        """Whether a batch is only copied, so that reading ahead gains nothing."""
        return self._split.in_memory and self._augment is None

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> Batch:
        if not 0 <= step < self._steps:
            raise IndexError(step)
        start = self._done + step * self._advance
        end = min(start + self._advance, len(self._order))
        size = self._shard.local_devices * self.padded_batch_size
        first, last = start, end
        if self._positions is not None:
            first, last = np.searchsorted(self._positions, (start, end)).tolist()
        elif not self._off:
            first += self._shard.process_id * size
        if first + size <= last:
            rows, weights = self._own[first : first + size], self._ones
        else:
            following = first + np.arange(size)
            rows = self._own[following % len(self._own)]
            weights = (following < last).astype(np.float32)
        inputs, labels = self._split.rows(rows)
        check_labels(self._split, rows, labels, self._classes)
        if self._augment is not None:
            inputs = self._augment(inputs, rows)
        by_device = (self._shard.local_devices, self.padded_batch_size)
        return Batch(
            inputs.reshape(*by_device, *inputs.shape[1:]),
            labels.reshape(*by_device, *labels.shape[1:]),
            weights.reshape(by_device),
            (end - start) * (self._shard.num_processes if self._off else 1),
            end - start,
        )


def check_labels(split: Split, numbers: Numbers, labels: NDArray[Any], classes: int) -> None:
    """Raise DataError if a label of these examples is none of the classes, of which 0 are any number."""
    # Negative labels are large as unsigned.
    if not classes or labels.dtype.kind != "i" or labels.view(np.uint32).max() < classes:
        return
    flat = labels.reshape(len(labels), -1)
    row, column = np.argwhere((flat < 0) | (flat >= classes))[0].tolist()
    raise DataError(
        f"The label of {split.description(int(numbers[row]))} is {flat[row, column]}; the {classes} classes are 0 to "
        f"{classes - 1}. Mend the labels, or give the network an output for each class (--classes)."
    )


def read(batches: Batches, in_memory: bool, processes: int = 0) -> Iterator[Batch]:
    """All batches in order; those that are not in memory are prefetched by threads, of processes if there are any."""
    if in_memory:
        return (batches[step] for step in range(len(batches)))
    import grain  # a slow import that only data in files needs

    options = grain.ReadOptions(num_threads=READING_THREADS, prefetch_buffer_size=2 * READING_THREADS)
    dataset = grain.MapDataset.source(batches).to_iter_dataset(options)
    if processes and len(batches) > processes:
        from absl import flags

        if not flags.FLAGS.is_parsed():  # grain's processes ask for some
            flags.FLAGS.mark_as_parsed()
        if _NO_LEAKS not in sys.warnoptions:
            sys.warnoptions.append(_NO_LEAKS)
        dataset = dataset.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=processes))
    in_order: Iterator[Batch] = iter(dataset)
    return in_order


def _interleaved(split: Split, orders: list[Numbers]) -> Numbers:
    """Interleave the files' orders evenly: example i of n is at position (i + 1/2) / n."""
    numbers = np.concatenate([start + order for start, order in zip(split.starts, orders, strict=True)])
    positions = np.concatenate([(np.arange(length) + 0.5) / length for length in split.lengths if length])
    return numbers[np.argsort(positions, kind="stable")]


def _advance(batch_size: int, shard: Shard, off: bool) -> int:
    return batch_size * (shard.local_devices if off else shard.replicas)
