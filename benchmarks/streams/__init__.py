"""Rows about logs, against those of Docker: lines that come in, a whole log that goes out, and from print to reader."""

from benchmarks.streams import into, out, shown

ROWS = (*into.ROWS, *out.ROWS, *shown.ROWS)
