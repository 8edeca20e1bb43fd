"""Who may call what: bearer tokens, one for each role. Nothing but `/healthz` is open."""

import hmac
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from trainyard_protocol.errors import PermissionDenied, TrainyardError, Unauthenticated
from trainyard_server import access
from trainyard_server.access import Caller
from trainyard_server.errors import answer
from trainyard_server.settings import Role

_OPEN = "/healthz"
_AREAS: Mapping[str, Role] = {
    "/v1/": Role.ADMIN,
    "/trainyard/": Role.ADMIN,
    "/upload/": Role.ADMIN,
    "/agent/": Role.AGENT,
}


class Authentication:
    """Stands before the routes, so that a route that was forgotten is closed and not open."""

    def __init__(self, app: ASGIApp, tokens: Mapping[Role, str]) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != _OPEN and not scope["path"].startswith("/static/"):
            error = self._refusal(scope["path"], Headers(scope=scope).get("authorization", ""))
            if error is not None:
                await answer(error)(scope, receive, send)
                return
            role = role_of(Headers(scope=scope)["authorization"].partition(" ")[2].strip(), self._tokens)
            assert role is not None
            scope.setdefault("state", {})["caller"] = Caller(access.Role(role.value), role.value)
        await self._app(scope, receive, send)

    def _refusal(self, path: str, authorization: str) -> TrainyardError | None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return Unauthenticated("This call needs a token: Authorization: Bearer TOKEN.")
        role = role_of(token.strip(), self._tokens)
        if role is None:
            return Unauthenticated("The token is none that this server was started with.")
        wanted = next((area for prefix, area in _AREAS.items() if path.startswith(prefix)), role)
        if role is not wanted:
            return PermissionDenied(f"The {role} token may not call {path}; it takes the {wanted} token.")
        return None


def role_of(token: str, tokens: Mapping[Role, str]) -> Role | None:
    """The role that the token speaks for. Takes the same time for every wrong token."""
    found = None
    for role, secret in tokens.items():
        if secret and hmac.compare_digest(token.encode(), secret.encode()):
            found = role
    return found
