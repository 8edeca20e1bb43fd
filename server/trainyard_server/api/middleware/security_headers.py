"""Security headers of every response, as middleware."""

from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Pages load from this server only, run nothing inline and cannot be framed.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; "
    "style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; font-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)

# Other responses may do nothing, even if a browser shows them as a page.
OTHER_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"

EVERYWHERE: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class SecurityHeaders:
    """The outermost middleware. Headers that a response sets itself stay, except Content-Security-Policy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                complete(MutableHeaders(scope=message))
            await send(message)

        await self._app(scope, receive, sending)


def complete(headers: MutableHeaders) -> None:
    """Add the missing headers of a response. Default: `Cache-Control: no-store`."""
    page = headers.get("content-type", "").startswith("text/html")
    headers["Content-Security-Policy"] = PAGE_POLICY if page else OTHER_POLICY
    for name, value in EVERYWHERE.items():
        headers.setdefault(name, value)
    headers.setdefault("Cache-Control", "no-store")
