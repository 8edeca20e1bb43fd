"""The program that writes records: `python -m trainyard_trainer.files convert SOURCE --to tfrecord OUT_DIR`.

SOURCE is an .npz file of arrays, or a folder of JPEG and PNG images with a subfolder for each class.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from trainyard_trainer.data.examples import example
from trainyard_trainer.data.files import LABEL_NAMES, find, open_file, read_shape
from trainyard_trainer.data.images import ImageFolder
from trainyard_trainer.data.records import write_tfrecord
from trainyard_trainer.errors import FileError, TrainerError
from trainyard_trainer.storage import open_folder


def convert(source: str, to: str, shards: int, out_dir: str) -> list[str]:
    """Write the examples of an .npz or an image folder as records, and return the files' names.

    Arrays stay in their order. Images are stored as they are, without decoding, and dealt to the shards in turn, so
    that each has all classes. The names of the labels, if there are any, are written to LABEL_NAMES.
    """
    urls = find(source)
    if len(urls) != 1 or not urls[0].endswith((".npz", "/")):
        raise FileError(f"{source} cannot be converted; allowed is an .npz file or a folder of images by class.")
    (url,) = urls
    file = open_file(url, input_shape=read_shape(url) or ())
    if not 1 <= shards <= len(file):
        raise FileError(f"{source} has {len(file)} examples, of which {shards} shards cannot be made.")
    numbers = np.arange(len(file))
    if isinstance(file, ImageFolder):
        images = file

        def records(indices: Sequence[int]) -> Iterable[bytes]:
            return (example(*images.encoded(index)) for index in indices)

        parts = [numbers[shard::shards] for shard in range(shards)]
    else:

        def records(indices: Sequence[int]) -> Iterable[bytes]:
            return (example(*row) for row in zip(*file.rows(np.asarray(indices)), strict=True))

        parts = np.array_split(numbers, shards)
    stem = url.rstrip("/").rpartition("/")[2].removesuffix(".npz")
    names = [f"{stem}.{to}-{shard:05d}-of-{shards:05d}" for shard in range(shards)]
    folder = open_folder(out_dir)
    with tempfile.TemporaryDirectory() as directory:
        for name, indices in zip(names, parts, strict=True):
            path = Path(directory, name)
            write_tfrecord(path, records(indices.tolist()))
            folder.upload(name, path)
            path.unlink()
    if file.label_names:
        folder.write(LABEL_NAMES, json.dumps(file.label_names).encode())
    return names


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m trainyard_trainer.files", description="Files of examples.")
    converting = parser.add_subparsers(required=True).add_parser(
        "convert", help="write the arrays of an .npz file, or the images of a folder, as records"
    )
    converting.add_argument(
        "source", metavar="SOURCE", help="an .npz file, or a folder with CLASS/NAME.jpg; a path or gs://..."
    )
    converting.add_argument("out_dir", metavar="OUT_DIR", help="where the files go: a path or gs://...")
    converting.add_argument("--to", choices=["tfrecord"], required=True)
    converting.add_argument("--shards", type=int, default=1, help="how many files (default: 1)")
    arguments = parser.parse_args(argv)
    try:
        names = convert(arguments.source, arguments.to, arguments.shards, arguments.out_dir)
    except TrainerError as error:
        sys.exit(str(error))
    print(*(f"{arguments.out_dir.rstrip('/')}/{name}" for name in names), sep="\n")


if __name__ == "__main__":
    main()
