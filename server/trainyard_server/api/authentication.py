"""Who calls, and whether they may: bearer tokens for programs, the session's cookie for browsers.

It stands before the routes, so that a route that was forgotten is closed and not open. Routes find the `Caller` in
`request.state.caller` (None only where a call is open to all), the session in `request.state.session` (None where there
is none) and what their forms must send in `request.state.csrf`.
"""

from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard_protocol.errors import PermissionDenied, TrainyardError, Unauthenticated
from trainyard_server.api import stream_expiry as session_streams
from trainyard_server.api.csrf import (
    bearer,
    check_csrf,
    check_origin,
    cookie_value,
    name_of_cookie,
    session_cookie,
)
from trainyard_server.api.errors import answer, answer_to, unusable
from trainyard_server.context import Clock
from trainyard_server.domain.permissions import (
    SAFE_METHODS,
    SIGN_IN,
    SIGN_OUT,
    Caller,
    Role,
    is_for_anybody,
    needed,
    wants_page,
)
from trainyard_server.domain.sessions import Session, Sessions
from trainyard_server.services.session_revocation import EndedSessions

_WEBSOCKET_REFUSED = 1008


@dataclass(frozen=True, slots=True)
class _Visitor:
    """Who calls, if anybody knows it; and how: with a session, or not."""

    caller: Caller | None = None
    session: Session | None = None
    bearer: bool = False


class Authentication:
    def __init__(self, app: ASGIApp, sessions: Sessions, ended: EndedSessions, clock: Clock) -> None:
        self._app = app
        self._sessions = sessions
        self._ended = ended
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:  # nothing here speaks WebSocket
            await send({"type": "websocket.close", "code": _WEBSOCKET_REFUSED})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = HTTPConnection(scope)
        role = needed(scope["method"], scope["path"])
        refusal: Response | None = None
        try:
            visitor = await self._visitor(request)
            if role is not None:
                _check_role(visitor, role, scope)
            if scope["method"] not in SAFE_METHODS and not visitor.bearer:
                check_origin(request)
                if role is not None and visitor.session is not None:
                    receive = await check_csrf(visitor.session, request, receive)
        except Unauthenticated as error:
            accept = request.headers.get("accept", "")
            is_visit = wants_page(scope["method"], scope["path"], accept) and not visitor.bearer
            refusal = _to_sign_in(scope) if is_visit else answer(error)
        except TrainyardError as error:
            refusal = answer_to(Request(scope), error)
        except SQLAlchemyError as error:  # it cannot be known whether the session was ended
            refusal = await unusable(Request(scope), error)
        except ClientDisconnect:
            return
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        session = visitor.session
        state = scope.setdefault("state", {})
        state["caller"] = visitor.caller
        state["session"] = session
        state["csrf"] = session.csrf if session is not None else ""
        if session is None:
            await self._app(scope, receive, send)
        else:
            await self._in_session(session, request, receive, send)

    async def _visitor(self, request: HTTPConnection) -> _Visitor:
        """Raises SQLAlchemyError where it cannot be known whether a session was ended."""
        if is_for_anybody(request.scope["path"]):
            return _Visitor()
        if shown := bearer(request):
            token = self._sessions.token(shown)
            return _Visitor(token.caller if token else None, bearer=True)
        value = cookie_value(request)
        session = self._sessions.read(value, self._clock()) if value else None
        if session is None or await run_in_threadpool(self._ended.is_ended, session):
            return _Visitor()
        return _Visitor(session.caller, session)

    async def _in_session(
        self, session: Session, request: HTTPConnection, receive: Receive, send: Send
    ) -> None:
        """Gives the session more time where it is due, and lets no stream outlive it."""
        now = self._clock()
        if renewed := self._sessions.renewed(session, now):
            session = renewed
            send = _renewing(name_of_cookie(request), session_cookie(request, session, now), send)
        await session_streams.serve(
            self._app,
            request.scope,
            receive,
            send,
            lasts_s=(session.stream_until(now) - now).total_seconds(),
            ended=partial(self._ended.until_ended, session),
        )


def _renewing(name: str, line: str, send: Send) -> Send:
    """Sets the cookie, unless the answer does so by itself (signing out does)."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if not any(said.startswith(f"{name}=") for said in headers.getlist("set-cookie")):
                headers.append("Set-Cookie", line)
        await send(message)

    return sending


def _check_role(visitor: _Visitor, role: Role, scope: Scope) -> None:
    """Raises Unauthenticated and PermissionDenied."""
    caller = visitor.caller
    if caller is None:
        raise Unauthenticated(
            "The token is none that this server was started with."
            if visitor.bearer
            else "This call needs a token, Authorization: Bearer TOKEN; in a browser, sign in first."
        )
    if not caller.may(role):
        raise PermissionDenied(f"You are {caller}. {scope['method']} {scope['path']} takes the role {role}.")


def _to_sign_in(scope: Scope) -> Response:
    wanted = quote(scope["path"])
    if query := scope.get("query_string", b"").decode("latin-1"):
        wanted += f"?{query}"
    where = f"{SIGN_IN}?next={quote(wanted, safe='/')}" if wanted not in ("/", SIGN_OUT) else SIGN_IN
    return RedirectResponse(where, 303)
