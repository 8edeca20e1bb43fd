"""A program that prints log lines in rounds: `printer.py DIR` waits for DIR/round-0, DIR/round-1, ...

A round is "LINES RATE" (per second; 0: as fast as it can). Nine of ten lines are those of a library, one has metrics.
Each ends with its time (time.monotonic), the last one of a round with `over`. It imports only the standard library.
"""

import sys
import time
from pathlib import Path


def line(number: int) -> str:
    """A line without its time. All have about 90 characters."""
    if number % 10:
        shard = f"shard {number % 128:05d} of 00128 was read in 0.0{number % 97:02d} s,"
        return f"2026-11-20 12:00:00,123 INFO data.reader: {shard}"
    return f'{{"event": "progress", "step": {number}, "steps": 10000000, "loss": 0.{number % 9973:06d}}}'


def print_round(lines: int, rate: float) -> None:
    began = time.monotonic()
    for number in range(lines):
        if rate and number % 10 == 0:
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
        sys.stdout.write(f"{line(number)} @{time.monotonic():.6f}\n" if number < lines - 1 else "over\n")
        sys.stdout.flush()


def main(directory: str) -> None:
    number = 0
    while True:
        path = Path(directory) / f"round-{number}"
        while not path.exists():
            time.sleep(0.02)
        lines, rate = path.read_text().split()
        print_round(int(lines), float(rate))
        number += 1


if __name__ == "__main__":
    main(sys.argv[1])
