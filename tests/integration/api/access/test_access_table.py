"""The permission table of docs/access.md: it has every route, and is right for every role."""

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
from trainyard_server.domain.permissions import Caller, Role
from trainyard_server.domain.sessions import Sessions
from trainyard_server.services.sign_in import RevokedSessions
from trainyard_server.storage.db.repository import Store
from trainyard_server.storage.events.notifier import Notifier

DOCS = Path(__file__).parents[4] / "docs" / "access.md"
ROW = re.compile(r"^\| `([A-Z]+) (/[^`]*)` \| (\w+) \|", re.MULTILINE)
TABLE = {(method, path): role for method, path, role in ROW.findall(DOCS.read_text(encoding="utf-8"))}
NOW = datetime(2026, 11, 21, 15, 0, tzinfo=UTC)
PEOPLE = [token for token in TOKENS if token.role is not Role.AGENT]


def test_table_has_exactly_the_routes(tmp_path: Path) -> None:
    """The call for a page's changes counts as that of the page."""
    found = set()
    with server(tmp_path, Clock()) as api:
        for context in iter_route_contexts(api.app.routes):
            path = context.path or ""
            page = (path.removeprefix("/live") or "/") if path.startswith("/live/") else path
            found |= {(method, page) for method in context.methods or ()}
    assert set(TABLE) == found


async def _inside(scope: Any, receive: Any, send: Any) -> None:
    """Application behind the authentication: answers 204."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture(scope="module")
def sessions() -> Sessions:
    return Sessions(TOKENS)


@pytest.fixture(scope="module")
def gate(sessions: Sessions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authentication]:
    store = Store.at(tmp_path_factory.mktemp("gate"), durable=False)
    yield Authentication(_inside, sessions, RevokedSessions(store, Notifier(), lambda: NOW), lambda: NOW)
    store.close()


async def status(gate: Authentication, method: str, path: str, headers: dict[str, str]) -> int:
    """The answer to the call; for a page also the answer to the call for its changes, which must be the same."""
    concrete = re.sub(r"\{[^}]*\}", "x", path)
    paths = [concrete, f"/live{concrete}"] if is_page(method, path) else [concrete]
    transport = httpx.ASGITransport(gate)
    async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers) as client:
        answers = {(await client.request(method, one)).status_code for one in paths}
    return answers.pop() if len(answers) == 1 else 0


async def mistakes(
    gate: Authentication, caller: str, headers: dict[str, str], allowed: set[tuple[str, str]]
) -> list[str]:
    """Every route of the table that these headers open although it is not allowed, or do not open although it is."""
    wrong = []
    for method, path in TABLE:
        answer = await status(gate, method, path, headers)
        if answer not in ({204} if (method, path) in allowed else {401, 403}):
            wrong.append(f"{caller}: {method} {path} gives {answer}")
    return wrong


def is_page(method: str, path: str) -> bool:
    areas = ("/v1/", "/trainyard/", "/upload/", "/agent/", "/static/", "/healthz", "/sign-in")
    return method == "GET" and not path.startswith(areas)


def expected(role: str, caller: Caller | None) -> bool:
    order = ["viewer", "submitter", "admin"]
    if role == "nothing":
        return True
    if caller is None:
        return False
    if role == "agent" or caller.role is Role.AGENT:
        return role == caller.role
    return order.index(caller.role) >= order.index(role)


def allowed_to(caller: Caller | None) -> set[tuple[str, str]]:
    return {route for route, role in TABLE.items() if expected(role, caller)}


async def test_token_has_the_permissions_of_the_table(gate: Authentication) -> None:
    wrong = await mistakes(gate, "nobody", {}, allowed_to(None))
    for token in TOKENS:
        headers = {"Authorization": f"Bearer {token.secret}"}
        wrong += await mistakes(gate, token.name, headers, allowed_to(token.caller))
    assert not wrong, "\n".join(wrong)


async def test_session_has_the_permissions_of_its_token_and_needs_csrf_for_changes(
    gate: Authentication, sessions: Sessions
) -> None:
    wrong = []
    for token in PEOPLE:
        session = sessions.open(token, NOW)
        cookie = {"Cookie": f"trainyard-80={session.value}"}
        right = allowed_to(token.caller)
        without_page = {route for route in right if route[0] == "GET" or TABLE[route] == "nothing"}
        wrong += await mistakes(gate, token.name, {**cookie, "X-CSRF-Token": session.csrf}, right)
        wrong += await mistakes(gate, f"{token.name} without the page", cookie, without_page)
    assert not wrong, "\n".join(wrong)


async def test_wrong_token_is_refused_on_every_route(gate: Authentication) -> None:
    headers = {"Authorization": "Bearer wrong"}
    wrong = await mistakes(gate, "wrong token", headers, allowed_to(None))
    assert not wrong, "\n".join(wrong)
