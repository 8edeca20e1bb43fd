"""Host names that this server answers to, as middleware.

A page of another site can give its own name an address of this machine (DNS rebinding), and is then of the same origin
as what answers there. Browsers send the name that they were told, so a request with a foreign name is refused before
anything else is read of it. An address cannot be given another meaning: every one is answered to.
"""

import re
from collections.abc import Iterable

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from trainyard_protocol.errors import TrainyardError, shown
from trainyard_protocol.net.loopback import is_address
from trainyard_server.api.errors import error_json
from trainyard_server.domain.access.route_access import wants_page

_HEADER = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:]+))(?::\d{0,5})?", re.ASCII)
_LOOPBACK = "localhost"  # browsers resolve it and every name below it to loopback, whatever a name server says


class UnknownHost(TrainyardError):
    http_status = 421
    status = "INVALID_ARGUMENT"


def answers_to(header: str, names: Iterable[str]) -> bool:
    """Whether a Host header names this server: an address, localhost, a name below it, or one of `names`, of which
    `*.example.com`, as in a certificate, stands for every name with one more label. Pure."""
    match = _HEADER.fullmatch(header)
    if match is None:
        return False
    name = (match[1] or match[2]).lower().removesuffix(".")
    own = {_LOOPBACK, *(own.lower().removesuffix(".") for own in names)}
    siblings = f"*.{name.partition('.')[2]}"
    return bool(own & {name, siblings}) or name.endswith(f".{_LOOPBACK}") or is_address(name)


class HostCheck:
    """Refuses requests to unknown host names, pages and API alike."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = tuple(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            header = HTTPConnection(scope).headers.get("host", "")
            if not answers_to(header, self._names):
                await _refusal(HTTPConnection(scope), header)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _refusal(request: HTTPConnection, header: str) -> Response:
    error = UnknownHost(
        f"This server does not answer to the host {shown(header)!r}, but to addresses, {_LOOPBACK}, names below "
        f"{_LOOPBACK}, the names in its certificate (--tls-cert) and what its option --allowed-host names. Behind a "
        "proxy, start it with --allowed-host NAME."
    )
    if wants_page(request.scope.get("method", ""), request.url.path, request.headers.get("accept", "")):
        return PlainTextResponse(error.message, error.http_status)
    return error_json(error)
