import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trainyard_trainer.data import sharding
from trainyard_trainer.data.datasets import Arrays, DataError, Dataset, Shard, Sharding, Split
from trainyard_trainer.data.sharding import Batch, Batches, epoch_order, steps_for

CLASSES = 10_000


def dataset(lengths: Sequence[int], policy: Sharding, process: int, processes: int) -> Dataset:
    """Examples whose label is their number, in files; those of other processes are missing."""
    starts = np.cumsum([0, *lengths])
    files = [
        Arrays(np.zeros((length, 2), np.float32), np.arange(start, start + length, dtype=np.int32))
        for start, length in zip(starts, lengths, strict=False)
    ]
    owners = tuple(file % processes for file in range(len(lengths))) if policy == "file" else None
    own_files = tuple(file if owners is None or owners[index] == process else None for index, file in enumerate(files))
    split = Split(own_files, tuple(lengths), owners)
    return Dataset(split, split, (2,), np.dtype(np.float32), (), policy, shuffle_files=policy == "file")


def epoch(
    lengths: Sequence[int], batch_size: int, processes: int, devices: int, policy: Sharding = "data", done: int = 0
) -> list[list[Batch]]:
    """The batches of an epoch in each process, from a number of examples on."""
    read = []
    for process in range(processes):
        shard, examples = Shard(process, processes, devices), dataset(lengths, policy, process, processes)
        order = epoch_order(examples, shard, seed=1, epoch=0)
        batches = Batches(examples.train, order, batch_size, shard, CLASSES, policy == "off", done=done)
        read.append([batches[step] for step in range(len(batches))])
    return read


def labels(batches: Sequence[Batch]) -> list[int]:
    return [int(label) for batch in batches for label in batch.labels[batch.weights == 1]]


@pytest.mark.parametrize("policy", ["data", "file"])
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("lengths", [[1, 1, 1, 1], [7, 3, 1, 2], [24] * 4, [90, 10, 50, 7, 31]])
def test_batches_cover_each_example_once_and_are_equally_many_and_large_in_every_process(
    lengths: list[int], processes: int, devices: int, policy: Sharding
) -> None:
    by_process = epoch(lengths, 4, processes, devices, policy)
    assert sorted(number for batches in by_process for number in labels(batches)) == list(range(sum(lengths)))
    steps = steps_for(sum(lengths), 4, Shard(0, processes, devices), off=False)
    assert [len(batches) for batches in by_process] == [steps] * processes
    assert len({(batch.inputs.shape, batch.labels.shape) for batches in by_process for batch in batches}) == 1
    for at_step in zip(*by_process, strict=True):
        assert sum(int(batch.weights.sum()) for batch in at_step) == at_step[0].examples == at_step[0].advance


@pytest.mark.parametrize("policy", ["data", "file"])
def test_steps_have_the_same_examples_on_any_number_of_processes(policy: Sharding) -> None:
    lengths, seen = [30, 20, 25, 25], []
    for processes in (1, 2, 4):
        by_process = epoch(lengths, 8 // processes, processes, 1, policy)
        seen.append(
            [sorted(n for batch in at_step for n in labels([batch])) for at_step in zip(*by_process, strict=True)]
        )
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("policy", ["data", "file"])
def test_rest_of_an_epoch_on_other_processes_is_what_was_not_read(policy: Sharding) -> None:
    assert epoch([5], 4, 2, 1, policy, done=5) == [[], []]
    lengths = [30, 20, 25, 25]
    before = epoch(lengths, 4, 2, 1, policy)
    done = sum(batch.advance for batch in before[0][:5])
    read = [number for batches in before for number in labels(batches[:5])]
    rest = [number for batches in epoch(lengths, 3, 4, 1, policy, done) for number in labels(batches)]
    assert sorted(read + rest) == list(range(100))


@pytest.mark.parametrize("policy", ["data", "file", "off"])
def test_padding_is_what_comes_next_in_the_order_also_in_the_rest_of_an_epoch(policy: Sharding) -> None:
    for process, batches in enumerate(epoch([40, 9], 4, 2, 2, policy)):
        order = epoch_order(dataset([40, 9], policy, process, 2), Shard(process, 2, 2), seed=1, epoch=0)
        readable = order if policy != "file" else order[(order >= 40) == process]
        following = [*readable.tolist()] * 3
        for batch in batches:
            rows, real = batch.labels.ravel().tolist(), int(batch.weights.sum())
            if real:
                start = following.index(rows[0])
                assert rows == following[start : start + len(rows)]
            assert len(set(rows)) == min(len(rows), len(readable))  # BatchNorm gets no batch of one example
        rest = epoch([40, 9], 4, 2, 2, policy, done=sum(batch.advance for batch in batches[:2]))[process]
        for expected, batch in zip(batches[2:], rest, strict=True):
            np.testing.assert_array_equal(batch.labels, expected.labels)
            np.testing.assert_array_equal(batch.weights, expected.weights)


def test_batches_by_equal_files_are_filled_without_padding_by_each_process_own_files_alone() -> None:
    both = epoch([16] * 4, 4, 2, 1, "file")
    for batches in both:
        assert {batch.inputs.shape for batch in batches} == {(1, 4, 2)}
        assert all(batch.weights.all() for batch in batches)
    assert [{number // 16 for number in labels(batches)} for batches in both] == [{0, 2}, {1, 3}]


def test_order_of_files_mixes_all_of_them_all_the_time() -> None:
    examples = dataset([60, 20, 20], "file", 0, 1)
    order = epoch_order(examples, Shard(0, 1, 1), seed=1, epoch=0)
    for start in range(0, 100, 10):
        in_window = np.searchsorted([60, 80], order[start : start + 10], side="right")
        assert np.abs(np.bincount(in_window, minlength=3) - [6, 2, 2]).max() <= 1


def test_off_gives_every_process_all_examples_in_its_own_order() -> None:
    first, second = epoch([50, 50], 4, 2, 1, "off")
    assert sorted(labels(first)) == sorted(labels(second)) == list(range(100))
    assert labels(first) != labels(second)
    assert len(first) == 25
    assert {batch.examples for batch in first} == {8}
    assert {batch.advance for batch in first} == {4}


@pytest.mark.parametrize("policy", ["data", "file", "off"])
def test_order_is_another_for_each_epoch_and_seed_but_always_the_same(policy: Sharding) -> None:
    examples, shard = dataset([30, 20], policy, 0, 1), Shard(0, 1, 1)
    orders = [tuple(epoch_order(examples, shard, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(orders)) == 4
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert tuple(epoch_order(examples, shard, 1, 1)) == orders[-1]


def test_label_beyond_the_classes_is_named_with_its_example() -> None:
    batches = Batches(dataset([10], "data", 0, 1).train, np.arange(10), 10, Shard(0, 1, 1), classes=9)
    with pytest.raises(DataError, match=r"The label of example 9 is 9; the 9 classes are 0 to 8\. .*--classes"):
        batches[0]


class Slow:
    """Examples that are not in memory."""

    in_memory = False

    def __len__(self) -> int:
        return 100

    def rows(self, indices: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        return indices[:, np.newaxis].astype(np.float32), indices.astype(np.int32)


def test_read_gives_the_same_batches_with_and_without_threads() -> None:
    batches = Batches(Split((Slow(),), (100,)), np.arange(100)[::-1], 8, Shard(0, 1, 1), CLASSES)
    plain, threaded = (list(sharding.read(batches, in_memory)) for in_memory in (True, False))
    assert len(plain) == len(threaded) == 13
    for one, other in zip(plain, threaded, strict=True):
        for actual, expected in zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True):
            np.testing.assert_array_equal(actual, expected)
