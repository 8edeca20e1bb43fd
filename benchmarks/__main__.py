"""Run the rows of the table: `python -m benchmarks [--quick] [--only NAME]`."""

import argparse
import logging
import os
import sys
import time
from pathlib import Path

from benchmarks import report
from benchmarks.control_plane import ROWS as CONTROL_PLANE
from benchmarks.idle import ROWS as IDLE
from benchmarks.jobs import ROWS as JOBS
from benchmarks.rows import LeftOut, Row, Samples
from benchmarks.streams import ROWS as STREAMS
from benchmarks.training.rows import ROWS as TRAINING

ROWS: tuple[Row, ...] = (*JOBS, *CONTROL_PLANE, *STREAMS, *IDLE, *TRAINING)
"""All rows, in the order of the table."""

_ROOT = Path(__file__).parent.parent
_PAGE = _ROOT / "docs" / "explanation" / "performance.md"

logger = logging.getLogger(__name__)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="what fits into five minutes; writes into build/")
    names = [row.name for row in ROWS]
    parser.add_argument("--only", action="append", metavar="NAME", choices=names, help=", ".join(names))
    parser.add_argument("--update", action="store_true", help="with --only: write these rows, the others stay")
    parser.add_argument("--busy", action="store_true", help="write although others use the machine")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody's programs compile all their modules at each start
    chosen = [row for row in ROWS if (row.name in options.only if options.only else row.in_quick or not options.quick)]
    unwritten = ""
    if options.only and (options.quick or not options.update):
        unwritten = "only some rows run (--update writes them, in their long form)"
    elif report.is_busy() and not options.busy:
        unwritten = "others use this machine (--busy writes nevertheless)"
    if unwritten:
        print(f"Nothing will be written: {unwritten}.", flush=True)
    results: list[tuple[Row, Samples]] = []
    left_out: list[tuple[Row, str]] = []
    failed: list[str] = []
    for row in chosen:
        began = time.monotonic()
        try:
            samples = row.run(options.quick)
        except LeftOut as missing:
            left_out.append((row, str(missing)))
            print(f"{row.name:24} left out: {missing}", flush=True)
            continue
        except Exception:  # the other rows took minutes
            logger.exception("%s failed", row.name)
            failed.append(row.name)
            continue
        results.append((row, samples))
        figure, spread, reach = report.figures(row, samples)
        print(
            f"{row.name:24} {figure:>8} ({spread}), {reach}"
            f"{'' if row.is_reached(samples) else ': missed'}  [{time.monotonic() - began:.0f} s]",
            flush=True,
        )
    print("\n" + "\n".join(report.table(results)))
    if failed:
        print(f"\nNothing is written: {', '.join(failed)} failed.")
        return 1
    if unwritten:
        return 0
    results_folder = _ROOT / ("build" if options.quick else "benchmarks/results")
    text, data = results_folder / "performance.md", results_folder / "performance.json"
    if options.only:
        by_row = {**report.read(data), **{row.name: samples for row, samples in results}}
        results = [(row, by_row[row.name]) for row in ROWS if row.name in by_row]
    report.write(results, text, data, options.quick, left_out)
    written = [text, data]
    if not options.quick:
        report.publish(results, _PAGE)
        written.append(_PAGE)
    print("\nWritten: " + ", ".join(str(path.relative_to(_ROOT)) for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
