"""The data: scikit-learn's handwritten digits, and the share of every batch that one process feeds to its devices.

To train on data of your own, write another `load`; nothing else here knows what the examples are.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SPLIT_SEED = 1797  # never changes, so that a held-out example is held out of every run
HELD_OUT = 360


@dataclasses.dataclass(frozen=True)
class Split:
    """Examples in memory: images float32 [N, 8, 8, 1] with values in [0, 1], labels int32 [N]."""

    images: NDArray[np.float32]
    labels: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)


@dataclasses.dataclass(frozen=True)
class Dataset:
    train: Split
    held_out: Split
    label_names: tuple[str, ...]


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
class Batch:
    """This process's part of one step, by local device (L) and example (B).

    Attributes:
        images: float32 [L, B, 8, 8, 1].
        labels: int32 [L, B].
        weights: float32 [L, B]; 1 for an example, 0 for padding.
        examples: how many examples the step has over all processes, padding not counted.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int32]
    weights: NDArray[np.float32]
    examples: int


def load() -> Dataset:
    """The 1,797 digits, of which the same 360 are held out every time. They come with scikit-learn: no download."""
    from sklearn.datasets import (
        load_digits,
    )  # a second of imports, which only a process that reads data should pay

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., np.newaxis]
    labels = digits.target.astype(np.int32)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    train, held_out = order[HELD_OUT:], order[:HELD_OUT]
    return Dataset(
        train=Split(images[train], labels[train]),
        held_out=Split(images[held_out], labels[held_out]),
        label_names=tuple(str(name) for name in digits.target_names),
    )


def shuffled(count: int, seed: int, epoch: int) -> NDArray[np.intp]:
    """The order of the examples in an epoch: the same in every process and after every restart."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def steps_for(examples: int, batch_size: int, share: Share) -> int:
    """How many steps all processes together take to read this many examples once."""
    return -(-examples // (batch_size * share.replicas))


def batches(split: Split, order: NDArray[np.intp], batch_size: int, share: Share) -> Iterator[Batch]:
    """This process's part of each global batch, the examples taken in the given order.

    Every process gets the same number of batches, all of the same shape, and over all processes each example occurs
    once: where the examples do not fill the last global batch, it is padded with examples of weight 0. (Processes
    with unequal numbers of steps would wait for each other for ever.)
    """
    steps = steps_for(len(order), batch_size, share)
    padding = steps * batch_size * share.replicas - len(order)
    by_step_and_process = (steps, share.num_processes, share.local_devices, batch_size)
    indices = np.pad(order, (0, padding)).reshape(by_step_and_process)
    weights = np.pad(np.ones(len(order), np.float32), (0, padding)).reshape(by_step_and_process)
    for step in range(steps):
        mine = indices[step, share.process_id]
        yield Batch(
            images=split.images[mine],
            labels=split.labels[mine],
            weights=weights[step, share.process_id],
            examples=int(weights[step].sum()),
        )
