"""Rows of jobs: from the request to the first instruction, and from the end of the program to that of the command."""

from benchmarks.jobs import containers, demo, edits, ends, processes, trivial
from benchmarks.rows import Row

ROWS: tuple[Row, ...] = (*containers.ROWS, *edits.ROWS, *processes.ROWS, *trivial.ROWS, *ends.ROWS, *demo.ROWS)
