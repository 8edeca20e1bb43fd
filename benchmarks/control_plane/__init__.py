"""Rows of the control plane: the queue, submissions, lists, starts and the command line."""

from benchmarks.control_plane import (
    commands,
    compared,
    costs,
    gangs,
    lists,
    open_pages,
    queue,
    scrapes,
    submits,
    suggestions,
    tables,
    tracking,
)
from benchmarks.rows import Row

ROWS: tuple[Row, ...] = (
    *queue.ROWS,
    *gangs.ROWS,
    *submits.ROWS,
    *costs.ROWS,
    *lists.ROWS,
    *tables.ROWS,
    *open_pages.ROWS,
    *compared.ROWS,
    *scrapes.ROWS,
    *tracking.ROWS,
    *suggestions.ROWS,
    *commands.ROWS,
)
