"""Messages about live parts: a browser that applies them has what a new page has."""

import re

from hypothesis import given
from hypothesis import strategies as st

from trainyard_server.dashboard.live_parts import LivePart

KEYS = st.sampled_from([f"p/job_{number}" for number in range(8)] + ["q/&lt;&#34;", ""])
TABLES = st.lists(st.tuples(KEYS, st.integers(0, 2)), max_size=10)
PLACEHOLDER = re.compile(r'<tr data-key="([^"]*)" data-same></tr>')


def part_of(rows: list[tuple[str, int]], heading: int = 0) -> str:
    lines = (f'    <tr role="row" data-key="{key}" data-row>\n      <td>{number}</td></tr>\n' for key, number in rows)
    return f"<p>{heading}</p><table><thead><tr><th>Job</th></tr></thead>\n{''.join(lines)}</table>"


class Browser:
    """A part as live.js has it: its frame, and its rows by their keys."""

    def __init__(self) -> None:
        self._frame = ""
        self._rows: dict[str, str] = {}

    def apply(self, message: dict[str, object]) -> None:
        self._frame = str(message.get("frame", self._frame))
        rows = message["rows"]
        assert isinstance(rows, list)
        for row in rows:
            key = re.search(r' data-key="([^"]*)"', row)
            assert key is not None
            self._rows[key[1]] = row

    @property
    def html(self) -> str:
        return PLACEHOLDER.sub(lambda placeholder: self._rows[placeholder[1]], self._frame)


@given(st.lists(st.tuples(TABLES, st.integers(0, 1)), min_size=1, max_size=6))
def test_browser_that_applies_every_message_has_what_a_new_page_has(
    tables: list[tuple[list[tuple[str, int]], int]],
) -> None:
    browser, sent = Browser(), None
    for rows, heading in tables:
        html = part_of(rows, heading)
        part = LivePart.of(html)
        browser.apply(part.since(sent))
        assert browser.html == html
        sent = part
