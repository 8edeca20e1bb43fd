"""Open pages: who shares their updates, what is sent of them, and what a browser makes of that."""

import asyncio
import re
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack, aclosing

import pytest
from anyio.to_thread import current_default_thread_limiter
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from starlette.requests import Request

from trainyard_server.dashboard.live_parts import LivePart
from trainyard_server.dashboard.row_cache import RowCache
from trainyard_server.dashboard.views import POLLING_THREADS, Dashboard, View, _key, _OpenPage
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.storage.events.broadcaster import Broadcaster
from trainyard_server.storage.events.notifier import Notifier

LONG_S = 1000.0


def request(name: str, csrf: str, role: Role = Role.SUBMITTER, host: str = "yard:8470") -> Request:
    return Request(
        {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": "/live/",
            "query_string": b"state=RUNNING",
            "headers": [(b"host", host.encode())],
            "state": {"caller": Caller.everywhere(role, name), "csrf": csrf},
        }
    )


class _Parts:
    """A rendering whose live parts are the values of the context."""

    def parts(self, _template: str, context: Mapping[str, str], _rows: RowCache) -> dict[str, LivePart]:
        return {name: LivePart(html, {}) for name, html in context.items() if name.startswith("part")}


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Dashboard:
    pages = Dashboard(Notifier(), LONG_S)
    monkeypatch.setattr(pages, "rendering", _Parts())
    return pages


async def test_page_that_a_change_does_not_concern_is_not_read(pages: Dashboard) -> None:
    notifier = Notifier()
    pages.broadcaster = Broadcaster(notifier, LONG_S, "")
    asked: list[frozenset[str]] = []

    def read_again(published: frozenset[str]) -> Mapping[str, str] | None:
        asked.append(published)
        return {"part": "1"} if "of-it" in published else None

    view = View("jobs.html", lambda: {"part": "0"}, ("of-it", "other"), read_again=read_again)
    async with asyncio.timeout(60), aclosing(pages.changes(request("alice", ""), view)) as changes:
        await anext(changes)
        notifier.publish("other")
        while not asked:
            await asyncio.sleep(0.01)
        notifier.publish("of-it")
        assert await anext(changes) == {"part": {"frame": "1", "rows": []}}
    assert asked == [{"other"}, {"of-it"}]


async def test_page_that_cannot_be_read_ends_the_stream(pages: Dashboard, caplog: pytest.LogCaptureFixture) -> None:
    def read() -> Mapping[str, str]:
        raise OSError("the disk is away")

    async with asyncio.timeout(60):
        changes = pages.changes(request("alice", ""), View("jobs.html", read))
        assert await anext(changes, None) is None
    assert "A page cannot be kept up to date: the disk is away" in caplog.text


async def test_many_open_pages_read_in_a_few_threads_and_leave_those_of_other_requests_free(pages: Dashboard) -> None:
    opened = 200
    reading: list[int] = []
    database_answers = threading.Event()

    def read() -> Mapping[str, str]:
        reading.append(1)
        assert database_answers.wait(60)
        return {"part": "0"}

    async with asyncio.timeout(60), AsyncExitStack() as stack:
        stack.callback(database_answers.set)
        streams = [
            await stack.enter_async_context(
                aclosing(pages.changes(request("alice", "", host=f"yard-{n}"), View("jobs.html", read)))
            )
            for n in range(opened)
        ]
        first = asyncio.gather(*(anext(stream) for stream in streams))
        while pages._polling.statistics().tasks_waiting < opened - POLLING_THREADS:
            await asyncio.sleep(0.01)
        assert len(reading) <= POLLING_THREADS
        assert current_default_thread_limiter().borrowed_tokens == 0
        database_answers.set()
        assert await first == [{"part": {"frame": "0", "rows": []}}] * opened


def test_sessions_of_one_person_share_a_poll_and_nobody_else_does() -> None:
    first = _key(request("alice", "one"))
    assert _key(request("alice", "two")) == first
    assert _key(request("bob", "one")) != first
    assert _key(request("alice", "one", Role.ADMIN)) != first
    assert _key(request("alice", "one", host="other")) != first


async def test_what_sessions_share_has_no_secret_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Dashboard(Notifier(), LONG_S)
    block = pages.rendering._environment.from_string("{% block live_x %}{{ caller.name }}{{ csrf }}{% endblock %}")
    monkeypatch.setattr(pages.rendering, "_live_blocks", lambda _: block.blocks)
    with pytest.raises(UndefinedError, match="csrf"):
        _OpenPage(pages.rendering, pages.reader(request("alice", "a-secret")), View("jobs.html", dict)).parts(
            None, frozenset()
        )


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
