"""Rows of open pages: which of them are rendered again."""

from collections.abc import Mapping, Sequence

from trainyard_server.dashboard.row_cache import RowCache


class Table:
    """Renderings of rows, each a key with its value. `rendered` has the keys of those that were not in the cache."""

    def __init__(self) -> None:
        self.rendered: list[str] = []
        self._cache = RowCache()

    def render(self, rows: Mapping[str, int], columns: Sequence[str] = ("state",)) -> str:
        self.rendered.clear()
        self._cache.begin()
        return " ".join(self._row(key, value, columns) for key, value in rows.items())

    def _row(self, key: str, value: int, columns: Sequence[str]) -> str:
        def html() -> str:
            self.rendered.append(key)
            return f"{key}={value}:{','.join(columns)}"

        return self._cache.row(key, value, lambda: {"columns": columns}, html)


def test_only_rows_that_show_something_else_are_rendered_again() -> None:
    table = Table()
    assert table.render({"a": 1, "b": 1}) == "a=1:state b=1:state"
    assert table.rendered == ["a", "b"]
    assert table.render({"b": 1, "a": 2}) == "b=1:state a=2:state"
    assert table.rendered == ["a"]
    assert table.render({"b": 1, "a": 2}, ("state", "owner")) == "b=1:state,owner a=2:state,owner"
    assert table.rendered == ["b", "a"]


def test_rows_that_are_no_longer_shown_are_dropped() -> None:
    table = Table()
    table.render({"a": 1, "b": 1})
    table.render({"b": 1})
    table.render({"a": 1, "b": 1})
    assert table.rendered == ["a"]
