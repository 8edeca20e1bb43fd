"""Durations of requests by class of route, for monitoring."""

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from trainyard_server.domain.access.route_access import Match, route_class
from trainyard_server.storage.observations import Observations


class RequestTimes:
    """Measures requests that have a route, without streams, which last as long as somebody follows them."""

    def __init__(self, app: ASGIApp, observations: Observations) -> None:
        self._app = app
        self._observations = observations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        try:
            await self._app(scope, receive, send)
        finally:
            match: Match | None = scope.get("state", {}).get("match")
            if match is not None and not match.is_stream and not match.route.is_long_poll:
                self._observations.request_ended(route_class(match.route), time.monotonic() - began)
