"""Limits as middleware: who has them."""

from typing import Any

from trainyard_server.api.middleware.limits import LimitCheck
from trainyard_server.app import ACCESS
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.services.people.limits import CallerLimits, RateLimit, StreamLimit


async def answers(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def test_agent_has_no_rate() -> None:
    limits = CallerLimits(RateLimit(0.1, lambda: 0.0), RateLimit(0, lambda: 0.0), StreamLimit(1))
    app, sent = LimitCheck(answers, limits), list[Any]()

    async def note(message: Any) -> None:
        sent.append(message)

    async def statuses(path: str, role: Role, calls: int) -> list[int]:
        sent.clear()
        state = {"caller": Caller.everywhere(role, "somebody"), "match": ACCESS.find("GET", path)}
        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "state": state}
        for _ in range(calls):
            await app(scope, None, note)  # type: ignore[arg-type]
        return [message["status"] for message in sent if "status" in message]

    assert await statuses("/cluster", Role.VIEWER, 2) == [200, 429]
    assert await statuses("/agent/v1/staging/a/b", Role.AGENT, 5) == [200] * 5
