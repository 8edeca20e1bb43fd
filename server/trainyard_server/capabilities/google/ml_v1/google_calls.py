"""Features that calls of every Google API have, as middleware for `/v1`, `/v2` and the storage: outside of audit and
authentication, so that these see the call that is meant.

- `X-HTTP-Method-Override`: GET with a query that is too long for an address comes as POST with the query as its body.
- `access_token` or `oauth_token` in the query, in place of an Authorization header: at addresses of Google's own APIs
  alone, where its clients send it. It goes no further than here, so nothing behind logs or passes it on.
- Bodies with `Content-Encoding: gzip`.
- `fields` (partial response) and `prettyPrint`; `callback` (JSONP) is refused.
- `/v1beta1`, where Vertex AI's clients call for the same custom jobs.

Source: https://cloud.google.com/apis/docs/system-parameters
"""

import json
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard_protocol.errors import InvalidArgument, TooLarge, TrainyardError, Violation, shown
from trainyard_protocol.net import field_mask
from trainyard_protocol.net.storage_calls import AREAS, PLAIN_OBJECTS
from trainyard_server.api.errors import error_json
from trainyard_server.api.middleware.csrf import replay
from trainyard_server.capabilities.google.storage.names import METHOD

_AREAS = ("/v1/", "/v2/")
_BETA = "/v1beta1/"
_STORAGE = (*AREAS, f"{PLAIN_OBJECTS}/")
_OVERRIDE = "x-http-method-override"
_OVERRIDES = ("GET", "PUT", "PATCH", "DELETE")
_TOKENS = ("access_token", "oauth_token")
_FIELDS = ("fields", "$fields")
_PRETTY = ("prettyPrint", "$prettyPrint")
_TRUE = ("true", "1", "")
_LONGEST_QUERY = 65_536
_MOST_PARAMETERS = 1000
_PART = 65_536
_OK, _MULTIPLE_CHOICES = 200, 300


class GoogleCalls:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_BETA):
            scope = {**scope, "path": scope["path"].replace(_BETA, "/v1/", 1)}
        if scope["type"] != "http" or not scope["path"].startswith((*_AREAS, *_STORAGE)):
            await self._app(scope, receive, send)
            return
        try:
            scope, receive = await _overridden(scope, receive)
            query = _parameters(scope["query_string"].decode("latin-1"))
            if "callback" in query:
                raise InvalidArgument(Violation("callback", "JSONP is not supported; leave it out."))
            scope = _without_token(scope, query)
            is_storage = scope["path"].startswith(_STORAGE)  # it selects fields and decodes bodies itself
            receive = receive if is_storage else _decoded(scope, receive)
            mask = {} if is_storage else _mask(query)
        except ClientDisconnect:
            return
        except TrainyardError as error:
            await error_json(error)(scope, receive, send)
            return
        pretty = not is_storage and any(query[name].lower() in _TRUE for name in _PRETTY if name in query)
        if mask or pretty:
            send = _SelectedAnswer(send, mask, pretty)
        await self._app(scope, receive, send)


def _parameters(text: str) -> Mapping[str, str]:
    """The parameters of a query; of one that comes twice the last value."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS))
    except ValueError:
        raise InvalidArgument(f"A query may have {_MOST_PARAMETERS} parameters.") from None


async def _overridden(scope: Scope, receive: Receive) -> tuple[Scope, Receive]:
    """The call that a POST with X-HTTP-Method-Override means. Raises InvalidArgument, TooLarge."""
    method = Headers(scope=scope).get(_OVERRIDE, "").upper()
    if not method or scope["method"] != "POST":
        return scope, receive
    if method not in _OVERRIDES:
        raise InvalidArgument(
            Violation(_OVERRIDE, f"must be one of {', '.join(_OVERRIDES)}; this is {shown(method)!r}.")
        )
    headers = MutableHeaders(scope=dict(scope))
    changed = {**scope, "method": method}
    if method != "GET" or not headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return changed, receive
    body = bytearray()
    async for part in Request(scope, receive).stream():
        body += part
        if len(body) > _LONGEST_QUERY:
            raise TooLarge(f"The query in the request's body is larger than the limit of {_LONGEST_QUERY} bytes.")
    if not body.isascii():
        raise InvalidArgument("The query in the request's body must be encoded as in an address.")
    query = b"&".join(part for part in (scope["query_string"], bytes(body).strip()) if part)
    del headers["content-type"], headers["content-length"]
    return {**changed, "query_string": query, "headers": headers.raw}, replay(b"", receive)


def _without_token(scope: Scope, query: Mapping[str, str]) -> Scope:
    """The call without the token in its query. It is in the header, where the call has no other and is Google's."""
    given = [query[name] for name in _TOKENS if query.get(name)]
    if not given:
        return scope
    headers = MutableHeaders(raw=list(scope["headers"]))
    is_googles = METHOD in scope or scope["path"].startswith((*_AREAS, *AREAS))
    if is_googles and "authorization" not in headers and given[0].isascii() and given[0].isprintable():
        headers["authorization"] = f"Bearer {given[0]}"
    rest = {name: value for name, value in query.items() if name not in _TOKENS}
    return {**scope, "headers": headers.raw, "query_string": urlencode(rest).encode()}


def _decoded(scope: Scope, receive: Receive) -> Receive:
    """The body, decompressed part by part: whoever reads it limits its length. Raises InvalidArgument."""
    encoding = Headers(scope=scope).get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return receive
    if encoding not in ("gzip", "x-gzip"):
        raise InvalidArgument(Violation("content-encoding", f"must be gzip or left out; this is {shown(encoding)!r}."))
    parts = _decompressed(Request(scope, receive))
    rest = replay(b"", receive)

    async def decoded() -> Message:
        async for part in parts:
            return {"type": "http.request", "body": part, "more_body": True}
        return await rest()

    return decoded


async def _decompressed(request: Request) -> AsyncIterator[bytes]:
    gzip = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        async for part in request.stream():
            yield gzip.decompress(part, _PART)
            while gzip.unconsumed_tail:
                yield gzip.decompress(gzip.unconsumed_tail, _PART)
        yield gzip.flush(_PART)
    except zlib.error as error:
        raise InvalidArgument(f"The body is not the gzip that its Content-Encoding says: {error}.") from error
    if not gzip.eof:
        raise InvalidArgument("The body is not the gzip that its Content-Encoding says: it ends too early.")


def _mask(query: Mapping[str, str]) -> field_mask.Mask:
    text = next((query[name] for name in _FIELDS if query.get(name)), "")
    return field_mask.parse(text) if text else {}


class _SelectedAnswer:
    """Sends the selected part of a JSON answer; errors, and what is no JSON, as they are."""

    def __init__(self, send: Send, mask: field_mask.Mask, pretty: bool) -> None:
        self._send = send
        self._mask, self._pretty = mask, pretty
        self._start: Message | None = None
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_answer(message):
            self._start = message
        elif message["type"] != "http.response.body" or self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        value: Any = field_mask.apply(self._mask, json.loads(self._body))
        form: dict[str, Any] = {"indent": 2} if self._pretty else {"separators": (",", ":")}
        body = json.dumps(value, ensure_ascii=False, **form).encode()
        headers = MutableHeaders(raw=list(start["headers"]))
        headers["content-length"] = str(len(body))
        await self._send({**start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": body})


def _is_answer(start: Message) -> bool:
    kind = Headers(raw=start["headers"]).get("content-type", "")
    return _OK <= start["status"] < _MULTIPLE_CHOICES and kind.startswith("application/json")
