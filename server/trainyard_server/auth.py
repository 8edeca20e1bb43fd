"""Who calls, and whether they may: bearer tokens for programs, the session's cookie for browsers.

It stands before the routes, so that a route that was forgotten is closed and not open. Routes find the `Caller` in
`request.state.caller` (None only where a call is open to all) and what their forms must send in `request.state.csrf`.
"""

from dataclasses import dataclass
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard_protocol.errors import PermissionDenied, TrainyardError, Unauthenticated
from trainyard_server.access import SAFE_METHODS, SIGN_IN, Caller, Role, is_page, needed
from trainyard_server.backend import Clock
from trainyard_server.browser import (
    bearer,
    check_csrf,
    check_origin,
    cookie_value,
    name_of_cookie,
    session_cookie,
)
from trainyard_server.errors import answer
from trainyard_server.sessions import Session, Sessions

_WEBSOCKET_REFUSED = 1008


@dataclass(frozen=True, slots=True)
class _Visitor:
    """Who calls, if anybody knows it; and how: with a session, or not."""

    caller: Caller | None = None
    session: Session | None = None
    bearer: bool = False


class Authentication:
    def __init__(self, app: ASGIApp, sessions: Sessions, clock: Clock) -> None:
        self._app = app
        self._sessions = sessions
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
        visitor = self._visitor(request)
        role = needed(scope["method"], scope["path"])
        refusal: Response | None = None
        try:
            if role is not None:
                _check_role(visitor, role, scope)
            if scope["method"] not in SAFE_METHODS and not visitor.bearer:
                check_origin(request)
                if role is not None and visitor.session is not None:
                    receive = await check_csrf(visitor.session, request, receive)
        except Unauthenticated as error:
            refusal = _to_sign_in(scope) if _is_visit(visitor, request) else answer(error)
        except TrainyardError as error:
            refusal = answer(error)
        except ClientDisconnect:
            return
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        session = visitor.session
        state = scope.setdefault("state", {})
        state["caller"] = visitor.caller
        state["csrf"] = session.csrf if session is not None else ""
        await self._app(scope, receive, self._renewing(request, session, send))

    def _visitor(self, request: HTTPConnection) -> _Visitor:
        if shown := bearer(request):
            token = self._sessions.token(shown)
            return _Visitor(token.caller if token else None, bearer=True)
        value = cookie_value(request)
        session = self._sessions.read(value, self._clock()) if value else None
        return _Visitor(session.caller, session) if session is not None else _Visitor()

    def _renewing(self, request: HTTPConnection, session: Session | None, send: Send) -> Send:
        """Gives a session that is used more time, unless the answer itself sets its cookie (signing out does)."""
        now = self._clock()
        renewed = self._sessions.renewed(session, now) if session is not None else None
        if renewed is None:
            return send
        line = session_cookie(request, renewed, now)
        name = name_of_cookie(request)

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


def _is_visit(visitor: _Visitor, request: HTTPConnection) -> bool:
    """Whether somebody wants to look at a page, so that signing in helps."""
    wants_page = "text/html" in request.headers.get("accept", "")
    looks = request.scope["method"] in SAFE_METHODS and is_page(request.scope["path"])
    return looks and wants_page and not visitor.bearer


def _to_sign_in(scope: Scope) -> Response:
    wanted = quote(scope["path"])
    if query := scope.get("query_string", b"").decode("latin-1"):
        wanted += f"?{query}"
    where = f"{SIGN_IN}?next={quote(wanted, safe='/')}" if wanted != "/" else SIGN_IN
    return RedirectResponse(where, 303)
