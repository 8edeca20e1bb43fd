"""Cache of the rows of an open page: a row is rendered again only if something that it shows has changed."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any


class RowCache:
    """The rows of the last rendering, with what they were rendered from. Rows that it did not have are dropped."""

    def __init__(self) -> None:
        self._shared: Mapping[str, Any] = {}
        self._last: dict[Hashable, tuple[object, str]] = {}
        self._rows: dict[Hashable, tuple[object, str]] = {}
        self._is_new = True

    def begin(self) -> None:
        """Begin a rendering."""
        self._last, self._rows, self._is_new = self._rows, {}, True

    def row(
        self, key: Hashable, own: object, shared: Callable[[], Mapping[str, Any]], render: Callable[[], str]
    ) -> str:
        """The row as it was rendered from the same `own` and `shared`, which all rows of a rendering have in common."""
        if self._is_new:
            self._is_new = False
            now = shared()
            if now != self._shared:
                self._shared, self._last = now, {}
        last = self._last.get(key)
        html = last[1] if last is not None and last[0] == own else render()
        self._rows[key] = own, html
        return html
