"""Examples in files of every kind, on a path and in a bucket."""

import gzip
import io
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from trainyard_trainer.data.examples import _example_class, example
from trainyard_trainer.data.files import CachedFile, File, find, open_file, read_label_names, read_shape
from trainyard_trainer.data.records import write_tfrecord
from trainyard_trainer.errors import FileError
from trainyard_trainer.files import main
from trainyard_trainer.storage import open_folder

COUNT, SHAPE = 20, (4, 3, 1)
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, *SHAPE), np.uint8)
LABELS = np.arange(COUNT, dtype=np.int32) % 7
ORDER = np.array([5, 0, 19, 5, 7])

Put = Callable[[str, bytes], str]


@pytest.fixture
def put(job_dir: str) -> Put:
    """Puts a file into the test's directory, and returns its URL."""

    def write(name: str, data: bytes) -> str:
        open_folder(job_dir).write(name, data)
        return f"{job_dir}/{name}"

    return write


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def records(tmp_path: Path, name: str, examples: list[bytes]) -> bytes:
    path = tmp_path / f"written-{name}"
    write_tfrecord(path, examples)
    return path.read_bytes()


def images(tmp_path: Path, name: str) -> bytes:
    """The test's images in a file of the format of its name."""
    if name.endswith(".npz"):
        return npz(inputs=IMAGES, labels=LABELS)
    return records(tmp_path, name, [example(*row) for row in zip(IMAGES, LABELS, strict=True)])


def encoded(image: NDArray[Any], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind)
    return file.getvalue()


def rows(file: File) -> tuple[NDArray[Any], NDArray[np.int32]]:
    return file.rows(np.arange(len(file)))


def opened(tmp_path: Path, name: str, data: bytes, shape: tuple[int, ...] = SHAPE) -> File:
    """A file of this content."""
    path = tmp_path / name
    path.write_bytes(data)
    return open_file(str(path), input_shape=shape)


def check_rows(file: File, which: NDArray[np.intp]) -> None:
    """Compare rows of a file with the test's images."""
    inputs, labels = file.rows(which)
    assert (inputs.dtype.name, labels.dtype.name) == ("uint8", "int32")
    np.testing.assert_array_equal(inputs, IMAGES[which])
    np.testing.assert_array_equal(labels, LABELS[which])


def only_row(tmp_path: Path, record: bytes, shape: tuple[int, ...]) -> NDArray[Any]:
    name = "one.tfrecord"
    inputs, _ = rows(opened(tmp_path, name, records(tmp_path, name, [record]), shape))
    return np.asarray(inputs[0])


def with_features(**features: Any) -> bytes:
    """A record whose features have other names than `example` gives them."""
    message = _example_class()()
    for name, value in features.items():
        kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(value[0])]
        getattr(message.features.feature[name.replace("__", "/")], kind).value.extend(value)
    return bytes(message.SerializeToString())


# Finding.


def test_find_files_directories_and_wildcards(put: Put, job_dir: str) -> None:
    names = (
        "a.npz",
        "b/train.tfrecord-00001-of-00002",
        "b/train.tfrecord-00000-of-00002",
        "b/c.tfrecords-00000-of-00001",
        "b/c.array_record-00000-of-00001",
        "b/README.md",
        "b/deeper/d.txt",
        "b2/e.tfrecords",
    )
    for name in names:
        put(name, b"x")

    def matches(*patterns: str) -> list[str]:
        urls = find(",".join(f"{job_dir}/{pattern}" for pattern in patterns))
        return [url.removeprefix(f"{job_dir}/") for url in urls]

    shards = ["b/train.tfrecord-00000-of-00002", "b/train.tfrecord-00001-of-00002"]
    in_b = ["b/c.tfrecords-00000-of-00001", *shards]
    assert matches("a.npz") == ["a.npz"]
    assert matches("b") == matches("b/") == in_b
    assert matches("b/train*") == matches("b/*-of-0000[2]") == shards
    assert matches("b*/?.*s") == ["b2/e.tfrecords"]
    assert matches("*/*/*.txt") == ["b/deeper/d.txt"]
    assert matches("b2", "a.npz", "*.npz", "b/train*", "b") == ["a.npz", *in_b, "b2/e.tfrecords"]


def test_find_names_the_pattern_without_matches(put: Put, job_dir: str) -> None:
    put("b/README.md", b"x")
    for pattern in ("nothing.npz", "*.npz", "b"):
        with pytest.raises(FileError, match=re.escape(f"{job_dir}/{pattern} finds no file. Allowed")):
            find(f"{job_dir}/{pattern}")
    for pattern in ("b/README.md", "b/*"):
        with pytest.raises(FileError, match=r"b/README.md is of no known kind. Allowed .* \.npz, \.txt, \.tf"):
            find(f"{job_dir}/{pattern}")
    with pytest.raises(FileError, match="names no file"):
        find(" ,")


def test_find_on_a_relative_path_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a[1].npz").write_bytes(npz(x=IMAGES, y=LABELS))
    monkeypatch.chdir(tmp_path)
    assert find(f"a[1].npz,{tmp_path}/a[1].npz") == (f"{tmp_path}/a[1].npz",)
    assert len(open_file("a[1].npz", input_shape=SHAPE)) == COUNT


# Every kind.


@pytest.mark.parametrize("name", ["a.npz", "a.tfrecord", "a.tfrecords-00001-of-00002"])
def test_rows_come_back_in_the_order_asked_for(put: Put, tmp_path: Path, name: str) -> None:
    url = put(name, images(tmp_path, name))
    file = open_file(url, input_shape=SHAPE, cache_dir=tmp_path / "cache")
    assert (file.url, len(file), file.label_names) == (url, COUNT, None)
    assert file.in_memory == name.endswith(".npz")
    for order in (ORDER, ORDER[:0]):
        check_rows(file, order)


def test_other_numbers_round_trip(tmp_path: Path) -> None:
    name = "a.tfrecord"
    floats = IMAGES.astype(np.float64) / 3
    tokens, next_ones = IMAGES.astype(np.int64).reshape(COUNT, -1), IMAGES.reshape(COUNT, -1)[:, ::-1]
    written = records(tmp_path, name, [example(image, 1) for image in floats])
    inputs, _ = rows(opened(tmp_path, name, written))
    assert inputs.dtype == np.float32
    np.testing.assert_array_equal(inputs, floats.astype(np.float32))
    written = records(tmp_path, name, [example(*row) for row in zip(tokens, next_ones, strict=True)])
    inputs, labels = rows(opened(tmp_path, name, written, (12,)))
    assert inputs.dtype == np.int32
    np.testing.assert_array_equal(inputs, tokens)
    np.testing.assert_array_equal(labels, next_ones)
    assert read_shape(f"{tmp_path}/{name}") is None


def test_text_is_tokens_and_the_ones_that_come_next(put: Put, tmp_path: Path) -> None:
    file = open_file(put("a.txt", b"abcdefgh"), input_shape=(3,), cache_dir=tmp_path)
    assert (len(file), file.in_memory) == (2, True)
    inputs, labels = file.rows(np.array([1, 0]))
    assert (inputs.dtype.name, labels.dtype.name) == ("int32", "int32")
    assert [bytes(row.astype(np.uint8)) for row in inputs] == [b"def", b"abc"]
    assert [bytes(row.astype(np.uint8)) for row in labels] == [b"efg", b"bcd"]
    assert len(open_file(put("b.txt", b"abcdefg"), input_shape=(3,), cache_dir=tmp_path)) == 2
    url = put("c.txt", b"abc")
    with pytest.raises(FileError, match=r"3 bytes; an example of the input shape \(3,\) takes 4"):
        open_file(url, input_shape=(3,), cache_dir=tmp_path)
    with pytest.raises(FileError, match=r"does not fit the input shape \(3, 1\)"):
        open_file(url, input_shape=(3, 1), cache_dir=tmp_path)


@pytest.mark.parametrize("job_dir", ["gs"], indirect=True)
def test_a_bucket_s_file_is_downloaded_once(
    put: Put, tmp_path: Path, job_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put("a.npz", npz(x=IMAGES, y=LABELS))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: open_file(url, input_shape=SHAPE, cache_dir=tmp_path / "cache"), range(4)))
    (cached,) = (tmp_path / "cache").iterdir()
    assert cached.name.endswith("-a.npz")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert read_shape(url) == SHAPE  # and into a directory of its own
    open_folder(job_dir).remove("a.npz")
    assert len(open_file(url, input_shape=SHAPE)) == COUNT


def test_a_file_that_is_not_there(job_dir: str, tmp_path: Path) -> None:
    for name in ("a.npz", "a.tfrecord", "a.txt"):
        with pytest.raises(FileError, match=re.escape(f"{job_dir}/{name} is not there")):
            open_file(f"{job_dir}/{name}", input_shape=SHAPE, cache_dir=tmp_path)
    assert not list(tmp_path.glob("*-a.*"))
    with pytest.raises(FileError, match="no known kind"):
        open_file(f"{job_dir}/a.csv", input_shape=SHAPE)


@pytest.mark.parametrize("job_dir", ["gs"], indirect=True)
def test_streamed_tfrecord_is_read_by_ranges_and_leaves_no_file(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard_trainer.storage.STREAM_BYTES", 100)
    url = put("a.tfrecord", images(tmp_path, "a.tfrecord"))
    file = open_file(url, input_shape=SHAPE, cache_dir=tmp_path / "cache", stream=True)
    assert len(file) == COUNT
    for order in (ORDER, ORDER[:1], ORDER[:0]):
        check_rows(file, order)
    assert not (tmp_path / "cache").exists()
    with pytest.raises(FileError, match="is not there"):
        open_file(f"{url}s", input_shape=SHAPE, stream=True)


# Arrays.


def test_npz_types_and_names(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, images=IMAGES[..., 0].astype(np.float64), y=LABELS.astype(np.int64), label_names=["a", "é"])
    assert read_shape(str(path)) == SHAPE
    file = open_file(str(path), input_shape=SHAPE)
    assert file.label_names == ("a", "é")
    inputs, labels = rows(file)
    assert (inputs.dtype.name, labels.dtype.name) == ("float32", "int32")
    np.testing.assert_array_equal(inputs, IMAGES)
    np.savez_compressed(path, x=IMAGES[..., 0].astype(np.int64), labels=IMAGES[..., 0], label_names=[b"a", b"b"])
    assert read_shape(str(path)) == SHAPE[:2]
    file = open_file(str(path), input_shape=SHAPE[:2])
    assert file.label_names == ("a", "b")
    inputs, labels = rows(file)
    assert (inputs.dtype.name, inputs.shape, labels.shape) == ("int32", (COUNT, 4, 3), (COUNT, 4, 3))
    for data, message in ((b"abc", "cannot be read"), (npz(y=LABELS), "no array inputs")):
        path.write_bytes(data)
        with pytest.raises(FileError, match=message):
            read_shape(str(path))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npz(x=IMAGES[:, :2], y=LABELS), r"inputs of shape \(2, 3, 1\), the model takes \(4, 3, 1\)"),
        (npz(x=IMAGES), "no array labels or y; its arrays: x"),
        (npz(y=LABELS), "no array inputs or images or x; its arrays: y"),
        (npz(x=IMAGES, y=LABELS[1:]), r"labels of shape \(19,\) for 20 inputs; allowed is one for each"),
        (npz(x=IMAGES, y=1), r"labels of shape \(\) for 20 inputs"),
        (npz(x=IMAGES, y=LABELS / 2), "labels are float64; allowed are whole numbers"),
        (npz(x=IMAGES, y=LABELS + np.int64(2**40)), r"labels are \d+ to \d+, where int32 is allowed"),
        (npz(x=IMAGES.astype(str), y=LABELS), "inputs are <U3; allowed are numbers"),
        (npz(x=IMAGES[:0], y=LABELS[:0]), "no examples"),
        (npz(x=IMAGES, y=LABELS, label_names=[1, 2]), "label_names are int64"),
        (npz(x=IMAGES.astype(object), y=LABELS), "cannot be read: .*none of Python objects"),
        (npz(x=IMAGES, y=LABELS)[:-9], "cannot be read"),
        (npz(x=IMAGES, y=LABELS).replace(IMAGES.tobytes(), bytes(IMAGES.size)), "cannot be read: Bad CRC"),
        (npy(IMAGES), "cannot be read: it is cut short, or is no .npz"),
        (b"abc" * 99, "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_invalid_npz_is_an_error_with_the_reason(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(FileError, match=f"a.npz.*{message}"):
        opened(tmp_path, "a.npz", data)


# Records.


def test_tfrecord_of_another_writer(tmp_path: Path) -> None:
    from tensorboardX.record_writer import RecordWriter  # imports grpc

    path = tmp_path / "a.tfrecord"
    writer = RecordWriter(str(path))
    for row in zip(IMAGES, LABELS, strict=True):
        writer.write(example(*row))
    writer.close()
    check_rows(open_file(str(path), input_shape=SHAPE), ORDER)
    assert path.read_bytes() == images(tmp_path, "a.tfrecord")


def test_records_of_other_names(tmp_path: Path) -> None:
    floats = IMAGES[0].astype("<f4") / 3
    for features in (
        {"image__encoded": [encoded(IMAGES[0, ..., 0])], "image__class__label": [3]},
        {"image_raw": [IMAGES[0].tobytes()], "label": [3], "height": [4]},
        {"x": [int(pixel) for pixel in IMAGES[0].ravel()], "y": [3]},
    ):
        np.testing.assert_array_equal(only_row(tmp_path, with_features(**features), SHAPE), IMAGES[0])
    raw = only_row(tmp_path, with_features(image=[floats.tobytes()], label=[3]), SHAPE)
    assert raw.dtype == np.float32
    np.testing.assert_array_equal(raw, floats)


def test_images_are_decoded_converted_and_resized(tmp_path: Path) -> None:
    flat = np.full((6, 8, 3), (200, 100, 50), np.uint8)
    grey = np.asarray(Image.fromarray(flat).convert("L"))[0, 0]
    for kind, tolerance in (("PNG", 0), ("JPEG", 3)):
        record = example(encoded(flat, kind), 1)
        as_is = only_row(tmp_path, record, (6, 8, 3))
        assert as_is.dtype == np.uint8
        np.testing.assert_allclose(as_is.astype(int), flat, atol=tolerance)
        assert read_shape(f"{tmp_path}/one.tfrecord") is None
        smaller = only_row(tmp_path, record, (3, 4, 3))
        np.testing.assert_allclose(smaller.astype(int), flat[:3, :4], atol=tolerance)
        for shape in ((5, 2, 1), (5, 2)):
            np.testing.assert_allclose(only_row(tmp_path, record, shape).astype(int), grey, atol=tolerance)
    assert (only_row(tmp_path, record, (6, 8, 4))[..., 3] == 255).all()
    step = np.array([[0, 0, 255, 255]], np.uint8)
    wider = only_row(tmp_path, example(encoded(step), 1), (1, 8))
    assert (np.diff(wider.astype(int)) >= 0).all()
    assert 0 < wider[0, 3] < wider[0, 4] < 255  # bilinear
    deep = only_row(tmp_path, example(encoded(np.array([[0, 512, 65535]], np.uint16)), 1), (1, 3))
    assert deep.tolist() == [[0, 2, 255]]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (example(IMAGES[0, :2], 1), r"6 bytes in its feature inputs.*\(4, 3, 1\), 12 \(uint8\) or 48 \(float32\)"),
        (example(IMAGES[0, :2] / 1, 1), r"6 numbers in its feature inputs; the input shape \(4, 3, 1\) takes 12"),
        (with_features(pixels=[b""], label=[1]), "none of the features inputs, image, .*; its features: label, pixels"),
        (with_features(x=[b"a" * 12]), "none of the features labels, label, .*; its features: x"),
        (with_features(x=[b"a" * 12], y=[1.5]), "no whole number in its feature y"),
        (with_features(x=[b"a" * 12], y=[2**40]), "numbers in its feature y of .* where int32 is allowed"),
        (with_features(x=[b"a", b"b"], y=[1]), "2 byte strings in its feature x; 1 is allowed"),
        (example(encoded(IMAGES[0, ..., 0])[:-30], 1), "is a JPEG or PNG that cannot be decoded"),
        (example(b"\xff\xd8\xff", 1), "is a JPEG or PNG that cannot be decoded"),
        (example(IMAGES[0] / 1, 1), "inputs of type float32 and a label of shape .*must be alike"),
        (example(IMAGES[0], np.array([1, 2])), r"a label of shape \(2,\).*must be alike"),
        (b"\xff" * 9, "is not a tf.train.Example"),
        (b"", "none of the features inputs, .*; its features: none"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,  # protobuf writes the same in another order
)
def test_wrong_record_is_named(tmp_path: Path, record: bytes, message: str) -> None:
    name = "a.tfrecord"
    third = records(tmp_path, name, [example(IMAGES[0], 1), example(IMAGES[1], 1), record])
    file = opened(tmp_path, name, third)
    with pytest.raises(FileError, match=f"{name}: record 2 .*{message}"):
        file.rows(np.array([0, 2]))
    if "alike" not in message:
        with pytest.raises(FileError, match=f"{name}: record 0 .*{message}"):
            opened(tmp_path, name, records(tmp_path, name, [record]))


def test_image_with_an_invalid_input_shape_and_an_example_of_no_numbers_are_refused(tmp_path: Path) -> None:
    for shape in ((4, 3, 2), (12,)):
        with pytest.raises(FileError, match=r"is an image, which does not fit .* with 1, 3 or 4 channels"):
            only_row(tmp_path, example(encoded(IMAGES[0, ..., 0]), 1), shape)
    with pytest.raises(TypeError, match="inputs are <U1; allowed are numbers"):
        example(np.array(["a"]), 1)
    with pytest.raises(TypeError, match="the label is float64"):
        example(IMAGES[0], np.array(1.5))


def test_damaged_tfrecord_names_the_position(put: Put, tmp_path: Path) -> None:
    data = images(tmp_path, "a.tfrecord")
    at = len(data) // COUNT
    second = f"record 1, at byte {at}"
    damages = {
        f"{second}: the file ends within its header": data[: at + 5],
        f"{second}: it ends at byte {2 * at} and the file at byte {at + 20}": data[: at + 20],
        f"{second}: its length does not match its checksum": data[:at] + b"\x01" + data[at + 1 :],
        "record 0, at byte 0: its length": b"no records at all",
        "gzip.* Decompress it": gzip.compress(data),
        "no examples": b"",
    }
    for number, (message, damaged) in enumerate(damages.items()):
        url = put(f"{number}.tfrecord", damaged)
        with pytest.raises(FileError, match=f"{re.escape(url)}.*{message}"):
            open_file(url, input_shape=SHAPE, cache_dir=tmp_path)
    url = put("a.tfrecord", data[: at + 15] + bytes([data[at + 15] ^ 1]) + data[at + 16 :])
    file = open_file(url, input_shape=SHAPE, cache_dir=tmp_path)
    file.rows(np.array([0, 2]))
    with pytest.raises(FileError, match=f"{second}: its content does not match"):
        file.rows(np.array([2, 1]))


def test_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    def fail() -> Any:
        yield example(IMAGES[0], 1)
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_tfrecord(tmp_path / "a.tfrecord", fail())
    assert not (tmp_path / "a.tfrecord").exists()


# Threads, and what is remembered.


@pytest.mark.parametrize(("name", "cached"), [("a.npz", False), ("a.tfrecord", True), ("a.txt", False)])
def test_threads_read_what_one_would(tmp_path: Path, name: str, cached: bool) -> None:
    data, shape = (IMAGES.tobytes(), (5,)) if name == "a.txt" else (images(tmp_path, name), SHAPE)
    serial = rows(opened(tmp_path, name, data, shape))
    file = opened(tmp_path, name, data, shape)
    shared = CachedFile(file) if cached else file
    orders = [np.random.default_rng(seed).permutation(len(file)) for seed in range(30)]
    with ThreadPoolExecutor(8) as threads:
        for order, (inputs, labels) in zip(orders, threads.map(shared.rows, orders), strict=True):
            np.testing.assert_array_equal(inputs, serial[0][order])
            np.testing.assert_array_equal(labels, serial[1][order])
    assert shared.in_memory == (cached or file.in_memory)


def test_cached_decodes_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = opened(tmp_path, "a.tfrecord", images(tmp_path, "a.tfrecord"))
    reads = np.zeros(COUNT, int)
    read = type(decoded).rows

    def count_and_read(file: File, indices: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        np.add.at(reads, indices, 1)
        return read(file, indices)

    monkeypatch.setattr(type(decoded), "rows", count_and_read)
    file = CachedFile(decoded)
    assert (file.url, len(file), file.label_names, file.in_memory) == (decoded.url, COUNT, None, False)
    check_rows(file, ORDER[:0])
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(COUNT)
        for batch in (ORDER, order[:9], order[9:]):
            assert file.in_memory == (reads > 0).all()
            check_rows(file, batch)
    assert (reads == 1).all()
    assert file.in_memory


# The command.


def test_convert_writes_shards_in_order(
    put: Put, job_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = put("digits.npz", npz(images=IMAGES[..., 0], labels=LABELS, label_names=["a", "b"]))
    main(["convert", source, "--to", "tfrecord", "--shards", "3", f"{job_dir}/out/"])
    names = [f"{job_dir}/out/digits.tfrecord-{shard:05d}-of-00003" for shard in range(3)]
    assert capsys.readouterr().out.splitlines() == names
    assert find(f"{job_dir}/out") == tuple(names)
    assert read_label_names(names[0]) == ("a", "b")
    files = [open_file(name, input_shape=SHAPE, cache_dir=tmp_path) for name in names]
    assert [len(file) for file in files] == [7, 7, 6]
    np.testing.assert_array_equal(np.concatenate([rows(file)[0] for file in files]), IMAGES)
    np.testing.assert_array_equal(np.concatenate([rows(file)[1] for file in files]), LABELS)


def test_convert_of_invalid_arguments_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(npz(x=IMAGES, y=LABELS))
    (tmp_path / "a.txt").write_bytes(b"text")
    for source, shards, message in (
        (path, "21", "20 examples, of which 21 shards cannot be made"),
        (path, "0", "20 examples, of which 0 shards cannot be made"),
        (tmp_path / "a.txt", "1", "allowed is an .npz file or a folder of images"),
    ):
        with pytest.raises(SystemExit, match=message):
            main(["convert", str(source), "--to", "tfrecord", "--shards", shards, str(tmp_path)])
