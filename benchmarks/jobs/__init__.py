"""Rows of jobs: from the request to the first instruction, and from the end of the program to that of the command."""

from benchmarks.jobs import containers, demo, ends, processes
from benchmarks.rows import Row

ROWS: tuple[Row, ...] = (*containers.ROWS, *processes.ROWS, *ends.ROWS, *demo.ROWS)
