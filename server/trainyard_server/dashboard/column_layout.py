"""Order and widths of the run table's columns, as the reader's browser keeps them in a cookie. Pure.

The server reads them, so that a page has its columns in place from the first paint. An address with columns has its own
order; widths apply to it all the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from trainyard_server.services.views.run_columns import MOST_COLUMNS, RunColumn, column_of

COLUMNS_COOKIE = "trainyard_columns"

_MAX_COOKIE = 4096
_WIDTHS = range(40, 1601)
_PICK_WIDTH = 24
_USUAL_WIDTHS = {"state": 116, "job": 320, "project": 96, "shape": 160, "metric": 210, "progress": 190, "labels": 200}
_USUAL_WIDTH = 104


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """`order`: the fields of columns, in the order that the reader gave them; `widths`: pixels by field."""

    order: tuple[str, ...] = ()
    widths: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_cookie(cls, text: str) -> "ColumnLayout":
        """The layout in `column=FIELD&width=FIELD:PIXELS`. What is damaged in it counts as not there."""
        if len(text) > _MAX_COOKIE:
            return cls()
        order: dict[str, None] = {}
        widths: dict[str, int] = {}
        for name, value in parse_qsl(text)[: 2 * MOST_COLUMNS]:
            if name == "column" and column_of(value):
                order[value] = None
            elif name == "width":
                column, _, pixels = value.rpartition(":")
                if column_of(column) and pixels.isascii() and pixels.isdecimal() and int(pixels[:5]) in _WIDTHS:
                    widths[column] = int(pixels[:5])
        return cls(tuple(order), widths)

    def ordered(self, columns: Sequence[RunColumn]) -> Sequence[RunColumn]:
        """The columns in the reader's order. One that is not in it stays behind the column before it."""
        places: list[tuple[int, int]] = []
        place = -1
        for at, column in enumerate(columns):
            place = self.order.index(column.field) if column.field in self.order else place
            places.append((place, at))
        return [columns[at] for _, at in sorted(places)]

    def widths_of(self, columns: Sequence[RunColumn]) -> Sequence[int]:
        """A width for the column of boxes and for each column; none where the reader has set none of them."""
        if not any(column.field in self.widths for column in columns):
            return ()
        usual = (_USUAL_WIDTHS.get(column.field, _USUAL_WIDTH) for column in columns)
        return [
            _PICK_WIDTH,
            *(self.widths.get(column.field, width) for column, width in zip(columns, usual, strict=True)),
        ]
