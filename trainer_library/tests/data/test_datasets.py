import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trainyard_trainer.data import datasets
from trainyard_trainer.data.datasets import DataError, Shard, Split

TEMPLATE = Path(datasets.__file__).resolve().parents[2]


def alone(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    return numbers[np.newaxis]


def load(patterns: str, shard: Shard = Shard(0, 1, 1), **options: Any) -> datasets.Dataset:  # noqa: B008 - frozen
    arguments: dict[str, Any] = {
        "held_out": None, "sharding": "auto", "shape": (2, 2, 1), "classes": 3, "gather": alone, "cache": False,
    }  # fmt: skip
    return datasets.load(patterns, shard=shard, **arguments | options)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Three files, of 20, 20 and 30 images, each image filled with its number."""
    for file, (start, count) in enumerate([(0, 20), (20, 20), (40, 30)]):
        numbers = np.arange(start, start + count)
        images = np.broadcast_to(numbers[:, None, None], (count, 2, 2)).astype(np.uint8)
        np.savez(tmp_path / f"{file}.npz", images=images, labels=numbers % 3)
    return tmp_path


def numbers_of(split: Split, which: NDArray[np.int64] | None = None) -> list[int]:
    inputs, labels = split.rows(np.arange(len(split)) if which is None else which)
    numbers: list[int] = inputs[:, 0, 0, 0].tolist()
    assert labels.tolist() == [number % 3 for number in numbers]
    return numbers


def test_digits_are_those_of_scikit_learn_which_is_not_imported_in_the_same_split_every_time() -> None:
    from sklearn.datasets import load_digits

    digits, theirs = datasets.digits(), load_digits()
    order = np.random.default_rng(datasets.SPLIT_SEED).permutation(1797)
    for ours, which in ((digits.held_out, order[:360]), (digits.train, order[360:])):
        images, labels = ours.rows(np.arange(len(ours)))
        assert (images.shape[1:], images.dtype.name, labels.dtype.name) == ((8, 8, 1), "float32", "int32")
        np.testing.assert_array_equal(images[..., 0] * 16, theirs.images[which])
        np.testing.assert_array_equal(labels, theirs.target[which])
    assert digits.label_names == tuple("0123456789")
    program = (
        "import sys; from trainyard_trainer.data import datasets; datasets.digits(); sys.exit('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=TEMPLATE, check=False).returncode == 0


def test_digits_without_scikit_learn_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="scikit-learn, which is not installed: install it"):
        datasets.digits()


def test_synthetic_data_is_the_same_every_time_and_has_the_shape() -> None:
    shapes: dict[tuple[int, ...], Any] = {(4, 4, 3): np.uint8, (16,): np.int32}
    for shape, dtype in shapes.items():
        first, second = datasets.synthetic(shape, 5), datasets.synthetic(shape, 5)
        inputs, labels = first.train.rows(np.arange(len(first.train)))
        assert (inputs.shape[1:], inputs.dtype) == (shape, dtype)
        assert 0 <= labels.min() <= labels.max() == 4
        np.testing.assert_array_equal(inputs, second.train.rows(np.arange(len(second.train)))[0])
        assert len(first.label_names) == 5


def test_arrays_of_numpy_s_types_become_those_of_jax() -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.arange(3)
    dataset = datasets.from_arrays(x, y, x, y.astype(np.uint8))
    for split in (dataset.train, dataset.held_out):
        inputs, labels = split.rows(np.arange(3))
        types = [type_.name for type_ in (dataset.input_dtype, inputs.dtype, labels.dtype)]
        assert types == ["float32", "float32", "int32"]
        np.testing.assert_array_equal(inputs, x)
        np.testing.assert_array_equal(labels, y)
    assert datasets.from_arrays(x.astype(np.uint8), y, x.astype(np.uint8), y).input_dtype == np.uint8
    assert datasets.from_arrays(x, y, x, y, np.unique(y)).label_names == ("0", "1", "2")


@pytest.mark.parametrize("cache", [False, True])
def test_files_hold_out_the_same_tenth_of_each_also_cached(files: Path, cache: bool) -> None:
    dataset = load(f"{files}/*.npz", cache=cache)
    assert dataset.train.lengths == (18, 18, 27)
    for _ in range(2):
        assert numbers_of(dataset.held_out) == [9, 19, 29, 39, 49, 59, 69]
        assert sorted(numbers_of(dataset.train) + numbers_of(dataset.held_out)) == list(range(70))
    assert (dataset.input_shape, dataset.input_dtype.name) == ((2, 2, 1), "uint8")


def test_text_holds_out_the_end_of_each_file(tmp_path: Path) -> None:
    for number, length in enumerate((43, 61)):  # in pieces of two, with one more as a label
        (tmp_path / f"{number}.txt").write_bytes(bytes(range(100 * number, 100 * number + length)))
    dataset = load(f"{tmp_path}/*.txt", shape=(2,))
    inputs, labels = dataset.held_out.rows(np.arange(len(dataset.held_out)))
    assert inputs.tolist() == [[38, 39], [40, 41], [154, 155], [156, 157], [158, 159]]
    _, trained = dataset.train.rows(np.arange(len(dataset.train)))
    assert dataset.train.lengths == (19, 27)
    assert not set(trained.ravel().tolist()) & set(labels.ravel().tolist())


def test_held_out_files_leave_the_training_files_whole_and_rows_come_in_the_order_asked_for(files: Path) -> None:
    dataset = load(f"{files}/[01].npz", held_out=f"{files}/2.npz")
    assert numbers_of(dataset.train) == list(range(40))
    assert numbers_of(dataset.held_out) == list(range(40, 70))
    assert numbers_of(dataset.train, np.array([39, 0, 20, 19, 0])) == [39, 0, 20, 19, 0]


def test_auto_sharding_is_by_file_if_there_are_enough_files() -> None:
    expected: dict[tuple[datasets.Sharding, int, int], bool] = {
        ("auto", 4, 4): True, ("auto", 5, 4): True, ("auto", 3, 4): False, ("auto", 1, 1): True,
        ("file", 4, 4): True, ("data", 4, 4): False, ("off", 4, 4): False,
    }  # fmt: skip
    assert {case: datasets.shards_by_file(*case) for case in expected} == expected


def test_sharding_by_file_with_too_few_files_or_data_in_memory_is_refused(files: Path) -> None:
    few = r"at least one file for each of 4 processes, and there are 3: write more, smaller"
    with pytest.raises(DataError, match=few):
        load(f"{files}/*.npz", Shard(0, 4, 1), sharding="file")
    for name in ("digits", "synthetic"):
        with pytest.raises(DataError, match=f"{name} is in memory. Choose auto, data or off"):
            load(name, sharding="file")


def test_sharding_by_file_opens_no_other_process_files(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    gathered = []

    def gather(own: NDArray[np.int64]) -> NDArray[np.int64]:
        gathered.append(own.tolist())
        return np.array([[20, 0, 30], [0, 20, 0]] if len(gathered) == 1 else [own, own])

    dataset = load(f"{files}/*.npz", Shard(0, 2, 1), gather=gather)
    assert gathered == [[20, 0, 30], [2, 2, 1, np.dtype(np.uint8).num, 3]]
    assert dataset.train.files[1] is None
    assert (dataset.train.lengths, dataset.train.owners) == ((18, 18, 27), (0, 1, 0))
    assert dataset.sharding == "file"
    assert "3 files cannot be divided evenly between 2 processes" in caplog.text


def test_files_that_differ_or_leave_a_process_without_examples_are_refused_and_auto_chooses_data(files: Path) -> None:
    two, patterns = Shard(0, 2, 1), f"{files}/*.npz"
    with pytest.raises(DataError, match="files of process 1 have no example to evaluate on"):
        load(patterns, two, sharding="file", gather=lambda _: np.array([[20, 5, 30]]))
    by_example = load(patterns, two, gather=lambda _: np.array([[20, 5, 30]]))
    assert (by_example.sharding, by_example.shuffle_files) == ("data", True)

    def gather(own: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([[20, 0, 30], [0, 20, 0]]) if len(own) == 3 else np.array([own, own + 1])

    with pytest.raises(DataError, match="files of different processes differ"):
        load(patterns, two, gather=gather)


def test_too_few_examples_to_hold_any_out_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((5, 2, 2), np.uint8), labels=np.zeros(5, int))
    with pytest.raises(DataError, match="5 examples to train on and 0 to evaluate on"):
        load(f"{tmp_path}/a.npz")
