"""What all pages share: how one is described, served, and kept up to date."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool

from trainyard_protocol.errors import TrainyardError
from trainyard_server.api.dependencies import asker_of
from trainyard_server.dashboard.live import Key, Live, Parts, encode
from trainyard_server.dashboard.rendering import rendering
from trainyard_server.dashboard.static_files import static_version
from trainyard_server.domain.permissions import Caller, Role
from trainyard_server.storage.events.notifier import Notifier

THEMES = ("light", "dark")
THEME_COOKIE = "trainyard_theme"


@dataclass(frozen=True, slots=True)
class View:
    """One page as one reader asked for it.

    `look` reads what the template shows, anew each time; it may block. News of one of `topics` calls for another look,
    and so does the end of `every_s`, for what time alone changes.
    """

    template: str
    look: Callable[[], Mapping[str, Any]]
    topics: tuple[str, ...] = ()
    every_s: float = 5.0


class Dashboard:
    """What the pages stand on, as `app.state.dashboard`."""

    def __init__(self, notifier: Notifier, ping_s: float) -> None:
        self.rendering = rendering()
        self.live = Live(notifier, ping_s)

    def page(self, request: Request, view: View) -> str:
        return self.rendering.page(view.template, {**_reader(request), **view.look()})

    def parts(self, request: Request, view: View) -> Parts:
        """The same for all sessions of one person: nothing in them is one session's secret."""
        shared = {name: value for name, value in _reader(request).items() if name not in ("csrf", "theme")}
        return self.rendering.parts(view.template, {**shared, **view.look()})

    def error(self, request: Request, error: TrainyardError) -> HTMLResponse:
        """What a person sees in place of a page."""
        html = self.rendering.page("error.html", {**_reader(request), "error": error})
        return HTMLResponse(html, error.http_status)


def dashboard_of(request: Request) -> Dashboard:
    dashboard: Dashboard = request.app.state.dashboard
    return dashboard


Pages = Annotated[Dashboard, Depends(dashboard_of)]


def add_page(router: APIRouter, path: str, describe: Callable[..., View]) -> None:
    """Serves a page at `path`, and its changes at `/live` + `path`. `describe` is a dependency that takes what it
    needs of the path and the query; the page's own errors are raised by it or by the view's first look."""

    def page(request: Request, pages: Pages, view: Annotated[View, Depends(describe)]) -> HTMLResponse:
        return HTMLResponse(pages.page(request, view))

    async def live(
        request: Request, pages: Pages, view: Annotated[View, Depends(describe)]
    ) -> EventSourceResponse:
        await run_in_threadpool(
            view.look
        )  # what is not there is said with a status, before the stream begins
        key = _key(request)
        stream = pages.live.stream(key, lambda: pages.parts(request, view), view.topics, view.every_s)
        return EventSourceResponse(
            _events(stream, request.state.csrf),
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    router.add_api_route(path, page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route(f"/live{path}", live, methods=["GET"])


async def _events(parts: AsyncGenerator[Parts | None, None], csrf: str) -> AsyncGenerator[bytes, None]:
    """`hello` says which version of the scripts the server has, `session` by what it knows its pages (a caller with a
    token has no session: `csrf` is ""); each `parts` has what changed."""
    yield format_sse_event(event="hello", data_str=static_version())
    if csrf:
        yield format_sse_event(event="session", data_str=csrf)
    async with aclosing(parts):  # whoever leaves is no viewer any more at once
        async for changed in parts:
            yield (
                KEEPALIVE_COMMENT
                if changed is None
                else format_sse_event(event="parts", data_str=encode(changed))
            )


def _key(request: Request) -> Key:
    caller = asker_of(request)
    return (request.url.netloc, request.url.path, request.url.query, caller.role.value, caller.name)


def _reader(request: Request) -> dict[str, Any]:
    """Who reads, and how he likes it."""
    theme = request.cookies.get(THEME_COOKIE, "")
    caller: Caller | None = getattr(request.state, "caller", None)
    return {
        "caller": caller,
        "csrf": getattr(request.state, "csrf", ""),
        "may_submit": caller is not None and caller.may(Role.SUBMITTER),
        "path": request.url.path.removeprefix("/live") or "/",
        "theme": theme if theme in THEMES else "",
    }
