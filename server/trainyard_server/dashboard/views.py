"""Views: how pages are described, served, and kept up to date.

All open pages of one address and one person share a poll: a hundred of them read the database once. Polls of different
pages have a few threads in all, so that the requests of others find some, and connections to the database, however many
pages are open.
"""

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event

from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.errors import TrainyardError
from trainyard_server.api.dependencies import caller_of
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.live_parts import LivePart
from trainyard_server.dashboard.rendering import Rendering, rendering
from trainyard_server.dashboard.row_cache import RowCache
from trainyard_server.dashboard.static_files import static_version
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.domain.access.route_access import Access
from trainyard_server.storage.events.broadcaster import Broadcaster
from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.use_cases import UseCases

POLLING_THREADS = 4
"""Threads that read and render open pages at a time. All other requests share the 40 of anyio."""

_T = TypeVar("_T")

Parts = Mapping[str, LivePart]
"""The live parts of a page, by name."""

Changes = Mapping[str, Mapping[str, object]]
"""Messages about live parts, by name."""

THEMES = ("light", "dark")
THEME_COOKIE = "trainyard_theme"


@dataclass(frozen=True, slots=True)
class View:
    """One page as one person requested it.

    `read` returns the context of its live parts, `read_rest` that of all else; they may block. An open page reads again
    after one of `topics` was published, at most once a second after one of `slow_topics`, and every `every_s`.
    `read_again` is called in place of `read` with what was published; it returns None if nothing on the page changed.
    `variant` tells apart what one person reads in different ways at one address.
    """

    template: str
    read: Callable[[], Mapping[str, Any]]
    topics: tuple[str, ...] = ()
    slow_topics: tuple[str, ...] = ()
    every_s: float = 5.0
    variant: str = ""
    read_rest: Callable[[], Mapping[str, Any]] = dict
    read_again: Callable[[frozenset[str]], Mapping[str, Any] | None] | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """An entry of the navigation, for callers who have `role` in some project; None: for all. Entries are sorted by
    `position`."""

    path: str
    title: str
    position: int
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class JobCard:
    """A card of a job's page. `template` has the page's context, and that which `context` reads for the use cases, the
    project, the job's id and the job; its errors are the page's. `of_studies`: of those of studies as well."""

    template: str
    context: Callable[[UseCases, str, str, JobDetail], Mapping[str, Any]]
    of_studies: bool = False


_LINKS = (Link("/", "Jobs", 10), Link("/cluster", "Cluster", 20), Link("/audit", "Audit", 50, Role.ADMIN))


class Dashboard:
    """Templates and open pages, as `app.state.dashboard`. `links`: entries of the navigation, beside those of the
    kernel. `pages`: the paths of all pages, as their routes have them."""

    def __init__(
        self,
        notifier: Notifier,
        ping_s: float,
        links: Iterable[Link] = (),
        pages: Iterable[str] = (),
        job_cards: Sequence[JobCard] = (),
    ) -> None:
        self.job_cards = job_cards
        self.links = sorted((*_LINKS, *links), key=lambda link: link.position)
        self.pages = frozenset(pages)
        self.rendering = rendering()
        self.broadcaster = Broadcaster[Parts](notifier, ping_s, "A page cannot be kept up to date")
        self._polling = CapacityLimiter(POLLING_THREADS)

    def page(self, request: Request, view: View) -> str:
        return self.rendering.page(view.template, {**self.reader(request), **view.read(), **view.read_rest()})

    def reader(self, request: Request) -> dict[str, Any]:
        """The context of every template: who reads, with which preferences."""
        theme = request.cookies.get(THEME_COOKIE, "")
        caller: Caller | None = getattr(request.state, "caller", None)
        return {
            "caller": caller,
            "csrf": getattr(request.state, "csrf", ""),
            "links": [
                link
                for link in self.links
                if caller is not None and (link.role is None or caller.may_anywhere(link.role))
            ],
            "pages": self.pages,
            "may_submit": caller is not None and caller.may_anywhere(Role.SUBMITTER),
            "path": request.url.path.removeprefix("/live") or "/",
            "theme": theme if theme in THEMES else "",
        }

    async def poll(self, read: Callable[[], _T]) -> _T:
        """Call `read` in a thread of those for open pages, once one is free."""
        return await to_thread.run_sync(read, limiter=self._polling)

    async def changes(self, request: Request, view: View) -> AsyncGenerator[Changes | None, None]:
        """All live parts, then what changed in them; None when nothing has happened for a while."""
        open_page = _OpenPage(self.rendering, self.reader(request), view)

        async def poll(last: Parts | None, published: frozenset[str]) -> Parts:
            return await self.poll(partial(open_page.parts, last, published))

        sent: Parts = {}
        pages = self.broadcaster.subscribe(
            (*_key(request), view.variant), poll, view.topics, view.every_s, view.slow_topics
        )
        async with aclosing(pages):
            async for parts in pages:
                if parts is None:
                    yield None
                    continue
                yield {name: part.since(sent.get(name)) for name, part in parts.items() if sent.get(name) != part}
                sent = parts

    def error(self, request: Request, error: TrainyardError) -> HTMLResponse:
        """Error page, in place of a page that cannot be shown."""
        html = self.rendering.page("error.html", {**self.reader(request), "error": error})
        return HTMLResponse(html, error.http_status)


class _OpenPage:
    """Live parts of a page, without what belongs to one session: all sessions of a person share them."""

    def __init__(self, rendering: Rendering, reader: Mapping[str, Any], view: View) -> None:
        self._rendering = rendering
        self._view = view
        self._reader = {name: value for name, value in reader.items() if name not in ("csrf", "theme")}
        self._rows = RowCache()

    def parts(self, last: Parts | None, published: frozenset[str]) -> Parts:
        """The parts now, which are those of `last` if what was published changes none."""
        view = self._view
        context = view.read_again(published) if published and last is not None and view.read_again else view.read()
        if context is None and last is not None:
            return last
        return self._rendering.parts(view.template, {**self._reader, **(context or {})}, self._rows)


def dashboard_of(request: Request) -> Dashboard:
    dashboard: Dashboard = request.app.state.dashboard
    return dashboard


Pages = Annotated[Dashboard, Depends(dashboard_of)]


def add_page(router: Router, path: str, access: Access, what: str, describe: Callable[..., View]) -> None:
    """Add the routes of a page: `path`, and `/live` + `path` with its changes. `describe` is a dependency with
    parameters of the path and the query; it or the view's first read raises the page's errors."""

    def page(request: Request, pages: Pages, view: Annotated[View, Depends(describe)]) -> HTMLResponse:
        return HTMLResponse(pages.page(request, view))

    async def live(request: Request, pages: Pages, view: Annotated[View, Depends(describe)]) -> EventSourceResponse:
        await pages.poll(view.read)  # raises the page's errors before the stream has a status
        return EventSourceResponse(
            _events(pages.changes(request, view), request.state.csrf),
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    router.get(path, access, what, response_class=HTMLResponse)(page)
    router.add_live(path, live)


async def _events(changes: AsyncGenerator[Changes | None, None], csrf: str) -> AsyncGenerator[bytes, None]:
    """`hello` has the version of the scripts, `session` the CSRF token of the session ("" for a caller with a token:
    no event), each `parts` what changed."""
    yield format_sse_event(event="hello", data_str=static_version())
    if csrf:
        yield format_sse_event(event="session", data_str=csrf)
    async with aclosing(changes):  # a browser that disconnects unsubscribes at once
        async for parts in changes:
            if parts is None:
                yield KEEPALIVE_COMMENT
            else:
                yield format_sse_event(event="parts", data_str=json.dumps(parts))


def _key(request: Request) -> tuple[str, ...]:
    """The same key gets the same parts."""
    caller = caller_of(request)
    roles = [f"{project} {role}" for project, role in sorted(caller.grants.items())]
    return (request.url.netloc, request.url.path, request.url.query, caller.name, *roles)
