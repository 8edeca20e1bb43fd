"""docs/access.md says of every call who may make it: the table holds every route, and is true for every role."""

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from integration.api.api_support import TOKENS, Clock, server
from trainyard_server.api.authentication import Authentication
from trainyard_server.domain.permissions import Caller, Role, Token
from trainyard_server.domain.sessions import Sessions
from trainyard_server.services.session_revocation import EndedSessions
from trainyard_server.storage.db.repository import Store
from trainyard_server.storage.events.notifier import Notifier

DOCS = Path(__file__).parents[2] / "docs" / "access.md"
ROW = re.compile(r"^\| `([A-Z]+) (/[^`]*)` \| (\w+) \|", re.MULTILINE)
TABLE = {(method, path): takes for method, path, takes in ROW.findall(DOCS.read_text(encoding="utf-8"))}
NOW = datetime(2026, 11, 21, 15, 0, tzinfo=UTC)
PEOPLE = [token for token in TOKENS if token.role is not Role.AGENT]


def test_every_route_has_its_line_and_every_line_its_route(tmp_path: Path) -> None:
    """The call for a page's changes counts as that of the page."""
    found = set()
    with server(tmp_path, Clock()) as api:
        for context in iter_route_contexts(api.app.routes):
            path = context.path or ""
            page = (path.removeprefix("/live") or "/") if path.startswith("/live/") else path
            found |= {(method, page) for method in context.methods or ()}
    assert set(TABLE) == found


async def _inside(scope: Any, receive: Any, send: Any) -> None:
    """Who gets here has been let in."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture(scope="module")
def sessions() -> Sessions:
    return Sessions(TOKENS)


@pytest.fixture(scope="module")
def gate(sessions: Sessions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authentication]:
    store = Store.at(tmp_path_factory.mktemp("gate"), durable=False)
    yield Authentication(_inside, sessions, EndedSessions(store, Notifier(), lambda: NOW), lambda: NOW)
    store.close()


def lets_in(gate: Authentication, method: str, path: str, headers: dict[str, str]) -> bool:
    """Whether the call gets through; the page's changes are asked for as well."""
    concrete = re.sub(r"\{[^}]*\}", "x", path)
    paths = [concrete, f"/live{concrete}"] if is_page(method, path) else [concrete]

    async def ask() -> set[int]:
        transport = httpx.ASGITransport(gate)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://server", headers=headers
        ) as client:
            return {(await client.request(method, one)).status_code for one in paths}

    (status,) = asyncio.run(ask())
    assert status in (204, 401, 403)
    return status == 204


def is_page(method: str, path: str) -> bool:
    areas = ("/v1/", "/trainyard/", "/upload/", "/agent/", "/static/", "/healthz", "/sign-in")
    return method == "GET" and not path.startswith(areas)


def expected(takes: str, caller: Caller | None) -> bool:
    order = ["viewer", "submitter", "admin"]
    if takes == "nothing":
        return True
    if caller is None:
        return False
    if takes == "agent" or caller.role is Role.AGENT:
        return takes == caller.role
    return order.index(caller.role) >= order.index(takes)


@pytest.mark.parametrize(("method", "path"), TABLE, ids=lambda value: value)
@pytest.mark.parametrize("token", [None, *TOKENS], ids=lambda token: token.name if token else "nobody")
def test_token_may_what_the_table_says(
    gate: Authentication, method: str, path: str, token: Token | None
) -> None:
    headers = {"Authorization": f"Bearer {token.secret}"} if token else {}
    caller = token.caller if token else None
    assert lets_in(gate, method, path, headers) is expected(TABLE[method, path], caller)


@pytest.mark.parametrize(("method", "path"), TABLE, ids=lambda value: value)
@pytest.mark.parametrize("token", PEOPLE, ids=lambda token: token.name)
def test_session_may_what_its_token_may_and_changes_nothing_without_its_page(
    gate: Authentication, sessions: Sessions, method: str, path: str, token: Token
) -> None:
    session = sessions.open(token, NOW)
    cookie = {"Cookie": f"trainyard-80={session.value}"}
    takes = TABLE[method, path]
    right = expected(takes, token.caller)
    assert lets_in(gate, method, path, {**cookie, "X-CSRF-Token": session.csrf}) is right
    assert lets_in(gate, method, path, cookie) is (right and (method == "GET" or takes == "nothing"))


@pytest.mark.parametrize(("method", "path"), TABLE, ids=lambda value: value)
def test_wrong_token_is_let_in_nowhere(gate: Authentication, method: str, path: str) -> None:
    open_to_all = TABLE[method, path] == "nothing"
    assert lets_in(gate, method, path, {"Authorization": "Bearer wrong"}) is open_to_all
