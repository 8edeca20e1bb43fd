"""CSV in blocks, for answers that are sent while they are made."""

import csv
import io
from collections.abc import Iterable, Iterator

_BLOCK = 64 * 1024  # characters
_FORMULAS = ("=", "+", "-", "@")


def csv_blocks(rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """The rows as CSV. A text that looks like a spreadsheet formula, and is no number, gets an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow([_safe(value) for value in row])
        if text.tell() > _BLOCK:
            yield text.getvalue()
            text.seek(0)
            text.truncate()
    yield text.getvalue()


def _safe(value: object) -> object:
    if not isinstance(value, str) or not value.startswith(_FORMULAS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
