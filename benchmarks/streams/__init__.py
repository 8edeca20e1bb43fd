"""Rows about logs, against those of Docker: lines that come in, a whole log that goes out, from print to reader; and
about what is attached to a replica."""

from benchmarks.streams import attached, into, out, shown

ROWS = (*into.ROWS, *out.ROWS, *shown.ROWS, *attached.ROWS)
