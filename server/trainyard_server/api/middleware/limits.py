"""Limits by caller as middleware. It runs behind the authentication, which sets the caller and the row of the route."""

from contextlib import nullcontext

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from trainyard_protocol.errors import TooManyRequests
from trainyard_server.api.errors import error_response
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.domain.access.route_access import Match
from trainyard_server.services.people.limits import CallerLimits


class LimitCheck:
    """Refuses a person's requests beyond the limits with 429 and Retry-After. Agents have no limits; calls that are
    open to all have no caller."""

    def __init__(self, app: ASGIApp, limits: CallerLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller | None = scope["state"]["caller"] if scope["type"] == "http" else None
        if caller is None or caller.is_agent:
            await self._app(scope, receive, send)
            return
        try:
            match: Match = scope["state"]["match"]
            (self._limits.storage if match.route.is_storage else self._limits.rate).check(caller.name)
            with self._limits.streams.slot(caller.name) if match.is_stream else nullcontext():
                await self._app(scope, receive, send)
        except TooManyRequests as error:
            await error_response(Request(scope), error)(scope, receive, send)
