"""Limits of bodies as middleware. It runs behind the authentication, which sets the row of the route."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard_protocol.errors import TooLarge
from trainyard_server.domain.access.route_access import Match


class BodyLimit:
    """Raises TooLarge in the route that reads a body, as soon as the body exceeds the limit of the route."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        """`most_bytes` is the limit of the routes that declare none."""
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match: Match | None = scope["state"]["match"] if scope["type"] == "http" else None
        if match is None or match.route.is_upload:
            await self._app(scope, receive, send)
            return
        limit = match.route.body_limit or self._most_bytes
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise TooLarge(f"The request's body is larger than the limit of {limit} bytes.")
            return message

        await self._app(scope, counted, send)
