import numpy as np
import pytest

from trainer import data


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    return data.load()


def split(count: int) -> data.Split:
    """Examples whose label is their number."""
    return data.Split(np.zeros((count, 8, 8, 1), np.float32), np.arange(count, dtype=np.int32))


def read(count: int, batch_size: int, processes: int, devices: int) -> list[list[data.Batch]]:
    """An epoch as each process reads it."""
    order = data.shuffled(count, seed=1, epoch=0)
    shares = [data.Share(process, processes, devices) for process in range(processes)]
    return [list(data.batches(split(count), order, batch_size, share)) for share in shares]


def test_load_gives_the_same_split_every_time(digits: data.Dataset) -> None:
    again = data.load()
    assert (len(digits.train), len(digits.held_out)) == (1437, 360)
    np.testing.assert_array_equal(again.held_out.images, digits.held_out.images)
    np.testing.assert_array_equal(again.train.labels, digits.train.labels)


def test_load_gives_images_between_0_and_1_with_named_labels(digits: data.Dataset) -> None:
    images, labels = digits.train.images, digits.train.labels
    assert (images.shape, images.dtype, labels.dtype) == ((1437, 8, 8, 1), np.float32, np.int32)
    assert (images.min(), images.max()) == (0, 1)
    assert digits.label_names == tuple("0123456789")
    assert set(labels) == set(digits.held_out.labels) == set(range(10))


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("count", [1, 7, 24, 1437])
def test_batches_cover_each_example_once_over_all_processes(count: int, processes: int, devices: int) -> None:
    seen: list[int] = []
    for batches in read(count, 4, processes, devices):
        for batch in batches:
            seen += batch.labels[batch.weights == 1].tolist()
    assert sorted(seen) == list(range(count))


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 7, 24, 1437])
def test_batches_are_equally_many_and_large_in_every_process(count: int, processes: int) -> None:
    by_process = read(count, 4, processes, 2)
    steps = data.steps_for(count, 4, data.Share(0, processes, 2))
    assert [len(batches) for batches in by_process] == [steps] * processes
    for batches in by_process:
        for batch in batches:
            assert batch.images.shape == (2, 4, 8, 8, 1)
            assert batch.labels.shape == batch.weights.shape == (2, 4)
    for at_step in zip(*by_process, strict=True):
        assert sum(int(batch.weights.sum()) for batch in at_step) == at_step[0].examples


def test_batches_of_many_processes_are_those_of_one_with_the_same_global_batch() -> None:
    (alone,) = read(100, 8, 1, 1)
    first, second = read(100, 4, 2, 1)
    for whole, *parts in zip(alone, first, second, strict=True):
        np.testing.assert_array_equal(whole.labels[0], np.concatenate([part.labels[0] for part in parts]))


def test_batches_of_the_rest_of_an_epoch_are_the_last_ones() -> None:
    share, order = data.Share(1, 2, 1), data.shuffled(100, seed=1, epoch=3)
    whole = list(data.batches(split(100), order, 4, share))
    done = sum(batch.examples for batch in whole[:5])
    rest = list(data.batches(split(100), order[done:], 4, share))
    for expected, batch in zip(whole[5:], rest, strict=True):
        np.testing.assert_array_equal(batch.labels, expected.labels)
        np.testing.assert_array_equal(batch.weights, expected.weights)


def test_batches_of_nothing_are_none() -> None:
    assert read(0, 4, 2, 1) == [[], []]


def test_shuffled_is_another_order_for_each_epoch_and_seed_but_always_the_same() -> None:
    orders = [tuple(data.shuffled(50, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(orders)) == 4
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert tuple(data.shuffled(50, seed=1, epoch=1)) == orders[-1]
