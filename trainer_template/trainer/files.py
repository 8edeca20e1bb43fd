"""The program that turns arrays into records: `python -m trainer.files convert SOURCE.npz --to tfrecord OUT_DIR`."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainer.data.examples import example
from trainer.data.files import open_file, read_shape
from trainer.data.records import write_array_record, write_tfrecord
from trainer.errors import FileError
from trainer.storage import open_folder


def convert(source: str, to: str, shards: int, out_dir: str) -> list[str]:
    """Write the examples of an .npz as records, in their order, and return the files' names.

    The names of the labels are lost: records cannot store them.
    """
    if not source.endswith(".npz"):
        raise FileError(f"{source} cannot be converted; allowed is an .npz file.")
    file = open_file(source, input_shape=read_shape(source) or ())
    if not 1 <= shards <= len(file):
        raise FileError(f"{source} has {len(file)} examples, of which {shards} shards cannot be made.")
    write = {"tfrecord": write_tfrecord, "array_record": write_array_record}[to]
    stem = source.rpartition("/")[2].removesuffix(".npz")
    names = [f"{stem}.{to}-{shard:05d}-of-{shards:05d}" for shard in range(shards)]
    with tempfile.TemporaryDirectory() as directory:
        for name, indices in zip(names, np.array_split(np.arange(len(file)), shards), strict=True):
            path = Path(directory, name)
            write(path, (example(*row) for row in zip(*file.rows(indices), strict=True)))
            open_folder(out_dir).write(name, path.read_bytes())
            path.unlink()
    return names


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m trainer.files", description="Files of examples.")
    converting = parser.add_subparsers(required=True).add_parser(
        "convert", help="write the arrays of an .npz file as records"
    )
    converting.add_argument("source", metavar="SOURCE.npz", help="a path or gs://...")
    converting.add_argument("out_dir", metavar="OUT_DIR", help="where the files go: a path or gs://...")
    converting.add_argument("--to", choices=["tfrecord", "array_record"], required=True)
    converting.add_argument("--shards", type=int, default=1, help="how many files (default: 1)")
    arguments = parser.parse_args(argv)
    try:
        names = convert(arguments.source, arguments.to, arguments.shards, arguments.out_dir)
    except FileError as error:
        sys.exit(str(error))
    print(*(f"{arguments.out_dir.rstrip('/')}/{name}" for name in names), sep="\n")


if __name__ == "__main__":
    main()
