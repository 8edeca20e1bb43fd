"""A program that prints log lines in rounds: `printer.py DIR` waits for DIR/round-0, DIR/round-1, ...

A round is "LINES RATE KIND" (per second; 0: as fast as it can, through a buffer, as a program that nobody watches).
`mixed`: nine of ten lines are those of a library, one has metrics; `metrics`: all have; `long`: a megabyte each;
`random`: a megabyte of random bytes each. A line of text ends with its time (time.monotonic), and the last one of a
round is `over`. It imports only the standard library.
"""

import os
import sys
import time
from pathlib import Path

_LONG = 10**6


def line(number: int, kind: str = "mixed") -> str:
    """A line without its time. All have about 90 characters."""
    if kind == "mixed" and number % 10:
        shard = f"shard {number % 128:05d} of 00128 was read in 0.0{number % 97:02d} s,"
        return f"2026-11-20 12:00:00,123 INFO data.reader: {shard}"
    return f'{{"event": "progress", "step": {number}, "steps": 10000000, "loss": 0.{number % 9973:06d}}}'


def print_round(lines: int, rate: float, kind: str) -> None:
    began = time.monotonic()
    with open(sys.stdout.fileno(), "wb", closefd=False) as out:  # a Python of a replica has no buffer
        for number in range(lines):
            if rate and number % 10 == 0:
                time.sleep(max(0.0, began + number / rate - time.monotonic()))
            if number == lines - 1:
                out.write(b"over\n")
            elif kind in ("long", "random"):
                out.write((b"x" * _LONG if kind == "long" else os.urandom(_LONG)) + b"\n")
            else:
                out.write(f"{line(number, kind)} @{time.monotonic():.6f}\n".encode())
            if rate:
                out.flush()


def main(directory: str) -> None:
    number = 0
    while True:
        path = Path(directory) / f"round-{number}"
        while not path.exists():
            time.sleep(0.02)
        lines, rate, kind = path.read_text().split()
        print_round(int(lines), float(rate), kind)
        number += 1


if __name__ == "__main__":
    main(sys.argv[1])
