"""Folders of images, their conversion to records, and augmentation."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from trainyard_trainer.data import datasets
from trainyard_trainer.data.augmentation import Augmentation
from trainyard_trainer.data.datasets import Arrays, DataError, Shard, Split
from trainyard_trainer.data.files import find, open_file
from trainyard_trainer.data.sharding import Batches
from trainyard_trainer.errors import FileError
from trainyard_trainer.files import main
from trainyard_trainer.storage import open_folder

CLASSES = {"cat": 200, "dog": 100, "owl": 0}  # their images' shade of gray
SHAPE = (6, 5, 3)


def encoded(shade: int, height: int, width: int, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((height, width), shade, np.uint8)).save(file, kind)
    return file.getvalue()


@pytest.fixture
def photos(job_dir: str) -> str:
    """Ten images of each class, each of another size, JPEG and PNG."""
    folder = open_folder(f"{job_dir}/photos")
    for label, shade in CLASSES.items():
        for number in range(10):
            kind, suffix = ("JPEG", "JPG") if number % 2 else ("PNG", "png")
            folder.write(f"{label}/{number}.{suffix}", encoded(shade, 7 + number, 20 - number, kind))
    folder.write("README.md", b"no image")
    folder.write(".cache/a.png", b"no image")
    return folder.url


def load(data: str, process: int = 0, processes: int = 1, **options: Any) -> datasets.Dataset:
    def gather(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.stack([numbers] * processes)

    arguments = {"held_out": None, "sharding": "auto", "shape": SHAPE, "classes": 99, "cache": False}
    return datasets.load(data, shard=Shard(process, processes, 1), gather=gather, **(arguments | options))


def shades_and_labels(split: Split) -> list[tuple[int, int]]:
    inputs, labels = split.rows(np.arange(len(split)))
    assert inputs.shape[1:] == SHAPE
    assert (np.ptp(inputs.astype(int), axis=(1, 2, 3)) <= 2).all()
    return [(int(round(float(image.mean()), -1)), int(label)) for image, label in zip(inputs, labels, strict=True)]


def test_images_of_any_size_in_a_folder_and_in_converted_shards_are_the_same_examples(
    photos: str, job_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (url,) = find(photos)
    assert url == f"{photos}/"
    folder = load(photos)
    assert (folder.label_names, folder.input_shape) == (tuple(CLASSES), SHAPE)
    assert (len(folder.train), len(folder.held_out)) == (27, 3)
    expected = [(shade, label) for label, shade in enumerate(CLASSES.values())]
    assert shades_and_labels(folder.held_out) == expected
    assert shades_and_labels(folder.train) == [pair for pair in expected for _ in range(9)]

    main(["convert", photos, "--to", "tfrecord", "--shards", "4", f"{job_dir}/out"])
    shards = capsys.readouterr().out.splitlines()
    assert find(f"{job_dir}/out") == tuple(shards)
    assert [len(open_file(shard, input_shape=SHAPE)) for shard in shards] == [8, 8, 7, 7]
    # Processes whose first images differ in size see the same shape and names.
    for process in (0, 1):
        records = load(f"{job_dir}/out", process, 2, held_out=f"{job_dir}/out", sharding="data")
        assert (records.label_names, records.input_shape) == (tuple(CLASSES), SHAPE)
    assert sorted(shades_and_labels(records.train)) == sorted(expected * 10)


def test_folder_without_usable_images_is_an_error_that_names_the_image(photos: str, job_dir: str) -> None:
    folder = open_folder(photos)
    folder.write("cat/3.JPG", b"\xff\xd8\xff torn")
    with pytest.raises(FileError, match=r"cat/3.JPG is a JPEG or PNG that cannot be decoded"):
        load(f"{job_dir}/photos").train.rows(np.arange(27))
    folder.remove("cat/3.JPG")
    images = open_file(f"{photos}/", input_shape=SHAPE)
    folder.remove("owl/9.JPG")
    with pytest.raises(FileError, match=r"owl/9.JPG is not there any more"):
        images.rows(np.array([len(images) - 1]))
    folder.write("other/dog/0.png", encoded(0, 4, 4, "PNG"))
    with pytest.raises(DataError, match=r"other/ has the labels dog; .* has cat, dog, owl"):
        load(photos, held_out=f"{photos}/other")


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_augmentation_depends_on_seed_epoch_and_example_alone(dtype: type) -> None:
    random = np.random.default_rng(0)
    images: NDArray[Any] = random.integers(256, size=(40, 8, 12, 3)).astype(dtype)
    numbers = np.arange(100, 140)
    augment = Augmentation(("crop", "flip"), seed=1, epoch=2)
    whole = augment(images, numbers)
    assert (whole.shape, whole.dtype) == (images.shape, images.dtype)
    order = random.permutation(40)
    np.testing.assert_array_equal(augment(images[order], numbers[order]), whole[order])
    for other in (Augmentation(("crop", "flip"), 1, 3), Augmentation(("crop", "flip"), 2, 2)):
        assert (other(images, numbers) != whole).any(axis=(1, 2, 3)).all()

    flipped = Augmentation(("flip",), 1, 2)(images, numbers)
    mirrored = (flipped == images[:, :, ::-1]).all(axis=(1, 2, 3))
    np.testing.assert_array_equal(flipped[~mirrored], images[~mirrored])
    assert 10 < mirrored.sum() < 30


def test_batches_are_augmented_by_the_numbers_of_their_examples() -> None:
    images = np.random.default_rng(0).random((10, 4, 4, 1), np.float32)
    split = Split((Arrays(images, np.arange(10, dtype=np.int32)),), (10,))
    order = np.random.default_rng(1).permutation(10)
    augment = Augmentation(("crop",), 5, 0)
    expected = augment(images, np.arange(10))
    for process in (0, 1):
        batches = Batches(split, order, 2, Shard(process, 2, 1), 10, augment=augment)
        assert not batches.in_memory
        for batch in (batches[step] for step in range(len(batches))):
            np.testing.assert_array_equal(batch.inputs, expected[batch.labels])
