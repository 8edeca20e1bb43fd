"""Authentication and role checks as middleware: bearer tokens for programs, session cookies for browsers.

It runs before routing, so a route without a row in the access table is closed. Routes read `request.state.caller`
(None only on calls that are open to all), `request.state.token_id`, the id of its token, `request.state.session` (None
without one) and `request.state.csrf`, the CSRF value that their forms send. `request.state.match` is the row.
"""

import logging
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard_protocol.errors import NotFound, PermissionDenied, TrainyardError, Unauthenticated, Unavailable
from trainyard_server.api.errors import MethodNotAllowed, database_error, error_json, error_response
from trainyard_server.api.middleware import stream_expiry
from trainyard_server.api.middleware.audit import admit
from trainyard_server.api.middleware.csrf import (
    address_of,
    bearer,
    check_csrf,
    check_origin,
    cookie_value,
    name_of_cookie,
    session_cookie,
)
from trainyard_server.context import Clock
from trainyard_server.domain.access.permissions import ALL_PROJECTS, SAFE_METHODS
from trainyard_server.domain.access.route_access import (
    SIGN_IN,
    SIGN_OUT,
    SOCKET,
    AccessTable,
    Match,
    is_for_anybody,
    wants_page,
)
from trainyard_server.domain.access.sessions import Session, Sessions
from trainyard_server.services.people.audit import identify
from trainyard_server.services.people.guess_limits import GuessLimits
from trainyard_server.services.people.principals import Principal, Principals
from trainyard_server.storage.db.tables.audit_trail import CheckAgain
from trainyard_server.storage.failures import DatabaseError, FailureLog

_failures = FailureLog(logging.getLogger(__name__))


@dataclass(frozen=True, slots=True)
class _Credentials:
    """Credentials of a request."""

    principal: Principal | None = None
    session: Session | None = None
    bearer: bool = False


class Authentication:
    def __init__(
        self,
        app: ASGIApp,
        access: AccessTable,
        sessions: Sessions,
        principals: Principals,
        guesses: GuessLimits,
        clock: Clock,
    ) -> None:
        self._app = app
        self._access = access
        self._sessions = sessions
        self._identities = principals
        self._guesses = guesses
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await self._socket(scope, receive, send)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket, with a bearer token: a cookie would let a page of another site open one."""
        request = HTTPConnection(scope)
        try:
            secret = bearer(request)
            principal = await self._of_bearer(secret, address_of(request)) if secret else None
            match = self._checked_match(self._access.find(SOCKET, scope["path"]), _Credentials(principal), scope)
        except TrainyardError as error:
            await error_json(error)(scope, receive, send)
            return
        except DatabaseError as error:
            _failures.record("Tokens cannot be read", error)
            await error_json(Unavailable("The server cannot read its database now. Try again."))(scope, receive, send)
            return
        assert principal is not None  # no WebSocket is open to all
        check_again = partial(self._identities.check_again, principal, None)
        scope.setdefault("state", {}).update(match=match, caller=principal.caller, check_again=check_again)
        if principal.lasting:
            await self._app(scope, receive, send)
            return
        lasts_s = None if principal.expires_at is None else (principal.expires_at - self._clock()).total_seconds()
        until_revoked = partial(self._identities.wait_until_changed, principal, None)
        await stream_expiry.serve_socket(self._app, scope, receive, send, lasts_s=lasts_s, until_revoked=until_revoked)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = HTTPConnection(scope)
        refusal: Response | None = None
        try:
            match = self._access.find(scope["method"], scope["path"])
            credentials = await self._credentials(request, match)
            if credentials.principal is not None:
                identify(credentials.principal, by_session=credentials.session is not None)
            match = self._checked_match(match, credentials, scope)
            if scope["method"] not in SAFE_METHODS and not credentials.bearer:
                check_origin(request)
                if match.need is not None and credentials.session is not None:
                    receive = await check_csrf(credentials.session, request, receive)
            admit(match, scope["path"], self._check_again(credentials))
        except Unauthenticated as error:
            accept = request.headers.get("accept", "")
            is_page = wants_page(scope["method"], scope["path"], accept) and not bearer(request)
            refusal = _to_sign_in(scope) if is_page else error_response(Request(scope), error)
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
        principal = credentials.principal
        state["match"] = match
        state["caller"] = principal.caller if principal is not None else None
        state["token_id"] = principal.token_id if principal is not None else ""
        state["session"] = session
        state["csrf"] = session.csrf if session is not None else ""
        if principal is None or (principal.lasting and session is None):
            await self._app(scope, receive, send)
        else:
            await self._while_valid(principal, session, request, receive, send)

    async def _credentials(self, request: HTTPConnection, match: Match | None) -> _Credentials:
        """A call that is open to all ignores a token, so that no token can be tried there. Raises Unauthenticated or
        TooManyGuesses for a wrong token, DatabaseError if the database is needed and cannot be read."""
        if is_for_anybody(request.scope["path"]):
            return _Credentials()
        is_open = match is not None and match.need is None
        if not is_open and (secret := bearer(request)):
            return _Credentials(await self._of_bearer(secret, address_of(request)), bearer=True)
        value = cookie_value(request)
        session = self._sessions.read(value, self._clock()) if value else None
        if session is None:
            return _Credentials()
        principal = await run_in_threadpool(self._identities.of_session, session)
        return _Credentials(principal, session) if principal is not None else _Credentials()

    def _check_again(self, credentials: _Credentials) -> CheckAgain | None:
        principal = credentials.principal
        return partial(self._identities.check_again, principal, credentials.session) if principal is not None else None

    async def _of_bearer(self, secret: str, address: str) -> Principal:
        principal = self._identities.of_file(secret)
        if principal is None:
            async with self._guesses.checking(address):
                principal = await run_in_threadpool(self._identities.of_bearer, secret)
        if principal is None:
            message = "This is not a token of this server, or it has expired or was revoked."
            raise self._guesses.wrong(address, Unauthenticated(message))
        return principal

    async def _while_valid(
        self, principal: Principal, session: Session | None, request: HTTPConnection, receive: Receive, send: Send
    ) -> None:
        """Renew the session if due; end event streams with the session, the token or the caller's roles."""
        now = self._clock()
        ends = [principal.expires_at] if principal.expires_at is not None else []
        if session is not None:
            if renewed := self._sessions.renewed(session, now):
                session = renewed
                cookie = session_cookie(request, session, now)
                send = _with_cookie(name_of_cookie(request), cookie, send)
            ends.append(session.stream_until(now))
        await stream_expiry.serve(
            self._app,
            request.scope,
            receive,
            send,
            lasts_s=(min(ends) - now).total_seconds() if ends else None,
            until_revoked=partial(self._identities.wait_until_changed, principal, session),
        )

    def _checked_match(self, match: Match | None, credentials: _Credentials, scope: Scope) -> Match:
        """The row of the request, once it is allowed. Raises Unauthenticated, PermissionDenied, and NotFound or
        MethodNotAllowed for a request without a row in the access table."""
        method, path = scope.get("method", SOCKET), scope["path"]
        if match is not None and match.need is None:
            return match
        caller = credentials.principal.caller if credentials.principal is not None else None
        if caller is None:
            if is_for_anybody(path) and (methods := self._access.methods_of(path)):
                raise MethodNotAllowed(method, path, methods)
            raise Unauthenticated("This call needs a token, Authorization: Bearer TOKEN; in a browser, sign in first.")
        if match is None:
            if methods := self._access.methods_of(path):
                raise MethodNotAllowed(method, path, methods)
            raise NotFound(f"There is nothing at {method} {path}.")
        need = match.need
        assert need is not None
        if credentials.principal is not None and credentials.principal.of_run and not match.route.is_for_runs:
            raise PermissionDenied("The token of a run is valid only for the storage and for MLflow tracking.")
        if caller.meets(need):
            return match
        if need.project != ALL_PROJECTS:
            caller.check_sees(need.project)
        you = f"You are {caller.described_in(need.project)}"
        raise PermissionDenied(f"{you}. {method} {path} needs the role {match.route.access}.")


def _with_cookie(name: str, line: str, send: Send) -> Send:
    """Adds the cookie unless the response sets it itself, as signing out does."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if not any(cookie.startswith(f"{name}=") for cookie in headers.getlist("set-cookie")):
                headers.append("Set-Cookie", line)
        await send(message)

    return sending


def _to_sign_in(scope: Scope) -> Response:
    target = quote(scope["path"])
    if query := scope.get("query_string", b"").decode("latin-1"):
        target += f"?{query}"
    url = f"{SIGN_IN}?next={quote(target, safe='/')}" if target not in ("/", SIGN_OUT) else SIGN_IN
    return RedirectResponse(url, 303)
