"""Audit as middleware, around the authentication, so that it sees its refusals too; and the route that lists rows.

Recorded: every call of a route with an action, and every call that is refused for want of a token or a role. The
authentication notes who calls, and that the call may be made (`admit`). Routes and use cases add what only they know:
the subject of something new, who signs in, and that nothing changes.
"""

from typing import Annotated

from fastapi import Depends, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard_protocol.answers.audit import AuditPage
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.routing import Router
from trainyard_server.context import Clock
from trainyard_server.domain.access.route_access import Access, AccessTable, Match
from trainyard_server.services.people.audit import Audit, AuditQuestion
from trainyard_server.storage.db.tables.audit_trail import AuditTrail, CheckAgain, current_trail, set_current_trail

_REFUSED = (401, 403, 429)
_INTERNAL = 500
_UNKNOWN = "unknown"

router = Router(prefix="/trainyard/v1")


class AuditMiddleware:
    def __init__(self, app: ASGIApp, access: AccessTable, audit: Audit, clock: Clock) -> None:
        self._app = app
        self._access = access
        self._audit = audit
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trail = _trail_of(HTTPConnection(scope), self._clock)
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status < _INTERNAL:
                    await self._record(scope, trail, status)
            await send(message)

        end = set_current_trail(trail)
        try:
            await self._app(scope, receive, sending)
            if status >= _INTERNAL:  # after the answer, which does not wait for a database that fails
                await self._record(scope, trail, status)
        except Exception:
            if not status:  # the outermost middleware answers
                await self._record(scope, trail, _INTERNAL)
            raise
        finally:
            end()

    async def _record(self, scope: Scope, trail: AuditTrail, status: int) -> None:
        if not trail.is_admitted:
            match = self._access.find(scope["method"], scope["path"])
            _describe(trail, match, scope["path"])
            trail.is_change = match is not None and bool(match.route.action)
        if (trail.is_change or status in _REFUSED) and not self._audit.is_recorded(trail, status):
            await run_in_threadpool(self._audit.record, trail, status)


def admit(match: Match, path: str, check_again: CheckAgain | None) -> None:
    """Note that the call may be made: a change in the database has its row from here on. `check_again` raises, in its
    transaction, where the caller may not make it any more."""
    trail = current_trail()
    if trail is not None:
        _describe(trail, match, path)
        trail.is_admitted = True
        trail.check_again = check_again
        trail.is_change = bool(match.route.action)


def _describe(trail: AuditTrail, match: Match | None, path: str) -> None:
    """Note the action, and from the path the project and the subject."""
    if match is None:
        trail.action, trail.subject = _UNKNOWN, path
        return
    trail.action = match.route.action or f"{match.route.method} {match.route.path}"
    trail.project = match.parameters.get("project", "")
    trail.subject = "/".join(value for name, value in match.parameters.items() if name != "project")


def _trail_of(request: HTTPConnection, clock: Clock) -> AuditTrail:
    return AuditTrail(
        clock,
        address=request.client.host if request.client is not None else "",
        user_agent=request.headers.get("user-agent", ""),
        request_id=request.headers.get("x-request-id", ""),
    )


async def _current() -> AuditTrail:
    trail = current_trail()
    assert trail is not None  # the middleware is around all routes
    return trail


Audited = Annotated[AuditTrail, Depends(_current)]
"""The audit of the request, for what only its route knows."""


@router.get("/audit", Access.PERSON, "who did what: operators see all, admins of projects what was done there")
def list_audit(
    cases: Cases,
    caller: AuthenticatedCaller,
    project: str = "",
    actor: str = "",
    action: str = "",
    since: str = "",
    until: str = "",
    page_size: Annotated[int | None, Query(alias="pageSize", json_schema_extra={"minimum": 0})] = None,
    page_token: Annotated[str, Query(alias="pageToken")] = "",
) -> AuditPage:
    """The newest rows that the caller may see."""
    question = AuditQuestion(project, actor, action, since, until, page_size, page_token)
    return cases.audit.page(caller, question)
