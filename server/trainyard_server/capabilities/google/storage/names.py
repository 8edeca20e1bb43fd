"""Calls to the storage's own name, as middleware: `GET /BUCKET/OBJECT`, Google's XML API, of which clients use reads.

Below every other name the same is at `/storage/plain/BUCKET/OBJECT`, beside the server's own routes.
"""

from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from trainyard_protocol.net.storage_calls import StorageCall, parse

METHOD = "trainyard.method"
"""Entry of the scope: the method that the client has sent, where the route is that of another."""

_GOOGLES = "storage.googleapis.com"
_LABEL = "storage."
_LOOPBACK = ".localhost"


def is_storage_host(header: str, domain: str = "") -> bool:
    """Whether a Host header names the storage: Google's name for it, or `storage` below localhost or `domain`. Pure."""
    name = header.partition(":")[0].lower().removesuffix(".")
    own = f"{_LABEL}{domain.partition(':')[0].lower()}" if domain else _GOOGLES
    return name in (_GOOGLES, own) or (name.startswith(_LABEL) and name.endswith(_LOOPBACK))


def encoded_path(scope: Scope) -> str:
    """The path as it was sent, without its query."""
    raw: bytes = scope["raw_path"]
    return raw.decode("latin-1").partition("?")[0]


class StorageNames:
    def __init__(self, app: ASGIApp, domain: str = "") -> None:
        """`domain` is the universe domain of Google's clients, if they have one here."""
        self._app = app
        self._domain = domain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._plain_call(scope)
        if call is not None:
            method = scope["method"]
            path = call.path_at_server
            scope = {
                **scope,
                "method": "GET" if method == "HEAD" else method,
                METHOD: method,
                "path": unquote(path),
                "raw_path": path.encode("ascii"),
            }
        await self._app(scope, receive, send)

    def _plain_call(self, scope: Scope) -> StorageCall | None:
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        if not is_storage_host(host, self._domain):
            return None
        call = parse(scope["method"], encoded_path(scope))
        return call if call is not None and call.is_plain else None
