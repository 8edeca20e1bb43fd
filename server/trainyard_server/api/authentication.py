"""Authentication and role checks as middleware: bearer tokens for programs, session cookies for browsers.

It runs before routing, so a route without an entry in the permissions is closed. Routes read `request.state.caller`
(None only on calls that are open to all), `request.state.session` (None without one) and `request.state.csrf`, the CSRF
value that their forms send.
"""

from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard_protocol.errors import PermissionDenied, TrainyardError, Unauthenticated
from trainyard_server.api import stream_expiry
from trainyard_server.api.csrf import (
    bearer,
    check_csrf,
    check_origin,
    cookie_value,
    name_of_cookie,
    session_cookie,
)
from trainyard_server.api.errors import database_error, error_json, error_response
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
from trainyard_server.services.sign_in import RevokedSessions
from trainyard_server.storage.failures import DatabaseError

_WEBSOCKET_REFUSED = 1008


@dataclass(frozen=True, slots=True)
class _Credentials:
    """Credentials of a request."""

    caller: Caller | None = None
    session: Session | None = None
    bearer: bool = False


class Authentication:
    def __init__(self, app: ASGIApp, sessions: Sessions, revoked: RevokedSessions, clock: Clock) -> None:
        self._app = app
        self._sessions = sessions
        self._revoked = revoked
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:  # WebSockets are not supported
            await send({"type": "websocket.close", "code": _WEBSOCKET_REFUSED})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = HTTPConnection(scope)
        role = needed(scope["method"], scope["path"])
        refusal: Response | None = None
        try:
            credentials = await self._credentials(request)
            if role is not None:
                _check_role(credentials, role, scope)
            if scope["method"] not in SAFE_METHODS and not credentials.bearer:
                check_origin(request)
                if role is not None and credentials.session is not None:
                    receive = await check_csrf(credentials.session, request, receive)
        except Unauthenticated as error:
            accept = request.headers.get("accept", "")
            is_page = wants_page(scope["method"], scope["path"], accept) and not credentials.bearer
            refusal = _to_sign_in(scope) if is_page else error_json(error)
        except TrainyardError as error:
            refusal = error_response(Request(scope), error)
        except DatabaseError as error:  # of the query for revoked sessions
            refusal = await database_error(Request(scope), error)
        except ClientDisconnect:
            return
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        session = credentials.session
        state = scope.setdefault("state", {})
        state["caller"] = credentials.caller
        state["session"] = session
        state["csrf"] = session.csrf if session is not None else ""
        if session is None:
            await self._app(scope, receive, send)
        else:
            await self._in_session(session, request, receive, send)

    async def _credentials(self, request: HTTPConnection) -> _Credentials:
        """Raises DatabaseError if revoked sessions cannot be queried."""
        if is_for_anybody(request.scope["path"]):
            return _Credentials()
        if secret := bearer(request):
            token = self._sessions.token(secret)
            return _Credentials(token.caller if token else None, bearer=True)
        value = cookie_value(request)
        session = self._sessions.read(value, self._clock()) if value else None
        if session is None or await run_in_threadpool(self._revoked.is_revoked, session):
            return _Credentials()
        return _Credentials(session.caller, session)

    async def _in_session(
        self, session: Session, request: HTTPConnection, receive: Receive, send: Send
    ) -> None:
        """Renew the session if due; end event streams with the session."""
        now = self._clock()
        if renewed := self._sessions.renewed(session, now):
            session = renewed
            send = _with_cookie(name_of_cookie(request), session_cookie(request, session, now), send)
        await stream_expiry.serve(
            self._app,
            request.scope,
            receive,
            send,
            lasts_s=(session.stream_until(now) - now).total_seconds(),
            until_revoked=partial(self._revoked.wait_until_revoked, session),
        )


def _with_cookie(name: str, line: str, send: Send) -> Send:
    """Adds the cookie unless the response sets it itself, as signing out does."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if not any(cookie.startswith(f"{name}=") for cookie in headers.getlist("set-cookie")):
                headers.append("Set-Cookie", line)
        await send(message)

    return sending


def _check_role(credentials: _Credentials, role: Role, scope: Scope) -> None:
    """Raises Unauthenticated and PermissionDenied."""
    caller = credentials.caller
    if caller is None:
        raise Unauthenticated(
            "This is not a token of this server."
            if credentials.bearer
            else "This call needs a token, Authorization: Bearer TOKEN; in a browser, sign in first."
        )
    if not caller.may(role):
        raise PermissionDenied(f"You are {caller}. {scope['method']} {scope['path']} takes the role {role}.")


def _to_sign_in(scope: Scope) -> Response:
    target = quote(scope["path"])
    if query := scope.get("query_string", b"").decode("latin-1"):
        target += f"?{query}"
    url = f"{SIGN_IN}?next={quote(target, safe='/')}" if target not in ("/", SIGN_OUT) else SIGN_IN
    return RedirectResponse(url, 303)
