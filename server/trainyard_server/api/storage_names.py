"""Calls to the storage's own name, as middleware: `GET /BUCKET/OBJECT`, Google's XML API, of which clients use reads.

Below every other name the same is at `/storage/plain/BUCKET/OBJECT`, beside the server's own routes.
"""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from trainyard_protocol.storage_calls import AREAS
from trainyard_server.domain.route_access import PLAIN_OBJECTS

METHOD = "trainyard.method"
"""Entry of the scope: the method that the client has sent, where the route is that of another."""

_GOOGLES = "storage.googleapis.com"
_LABEL = "storage."
_LOOPBACK = ".localhost"
_METHODS = ("GET", "HEAD", "PUT", "DELETE")


def is_storage_host(header: str, domain: str = "") -> bool:
    """Whether a Host header names the storage: Google's name for it, or `storage` below localhost or `domain`. Pure."""
    name = header.partition(":")[0].lower().removesuffix(".")
    own = f"{_LABEL}{domain.partition(':')[0].lower()}" if domain else _GOOGLES
    return name in (_GOOGLES, own) or (name.startswith(_LABEL) and name.endswith(_LOOPBACK))


class StorageNames:
    def __init__(self, app: ASGIApp, domain: str = "") -> None:
        """`domain` is the universe domain of Google's clients, if they have one here."""
        self._app = app
        self._domain = domain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        if is_storage_host(host, self._domain) and _is_plain(scope):
            method = scope["method"]
            scope = {
                **scope,
                "method": "GET" if method == "HEAD" else method,
                METHOD: method,
                "path": PLAIN_OBJECTS + scope["path"],
                "raw_path": PLAIN_OBJECTS.encode() + scope["raw_path"],
            }
        await self._app(scope, receive, send)


def _is_plain(scope: Scope) -> bool:
    path = scope["path"]
    return scope["method"] in _METHODS and path.count("/") >= 2 and not path.startswith((*AREAS, "/batch/"))
