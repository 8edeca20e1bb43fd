"""An id for each request: in its answer and in each line of the log that is written meanwhile."""

import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard_protocol.service_log import REQUEST_ID, new_request_id, request_id
from trainyard_server.api.errors import INTERNAL, error_response

logger = logging.getLogger(__name__)


class RequestIds:
    """A request that fails unexpectedly is answered and logged here, while its id is known."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        current = new_request_id(Headers(scope=scope).get(REQUEST_ID, ""))
        has_started = False

        async def sending(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                MutableHeaders(scope=message)[REQUEST_ID] = current
            await send(message)

        token = request_id.set(current)
        try:
            await self._app(scope, receive, sending)
        except Exception:
            if scope["type"] != "http" or has_started:
                raise  # the connection ends, and the web server logs it
            logger.exception("%s %s failed", scope["method"], scope["path"])
            await error_response(Request(scope), INTERNAL)(scope, receive, sending)
        finally:
            request_id.reset(token)
