"""The headers that every answer has, whoever made it: what a browser may do with it."""

from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What a page may load and do: what this server has, nothing inline, and nobody may frame it. The hash is that of
# nothing: plotly.js makes an empty style element and fills it by its rules.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; "
    "style-src 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='; "
    "img-src 'self' data:; connect-src 'self'; font-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)

# Whatever is no page can do nothing at all, should a browser ever show it as one.
OTHER_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"

EVERYWHERE: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class SecurityHeaders:
    """Stands around everything else. What an answer says by itself stays, but for the policy of a page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                complete(MutableHeaders(scope=message))
            await send(message)

        await self._app(scope, receive, sending)


def complete(headers: MutableHeaders) -> None:
    """Adds to an answer's headers what is missing. What no answer says otherwise is kept by nobody."""
    page = headers.get("content-type", "").startswith("text/html")
    headers["Content-Security-Policy"] = PAGE_POLICY if page else OTHER_POLICY
    for name, value in EVERYWHERE.items():
        headers.setdefault(name, value)
    headers.setdefault("Cache-Control", "no-store")
