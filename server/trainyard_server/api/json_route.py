"""JSON bodies: parsed once, within limits, and by a thread if they are large.

FastAPI's own reading parses on the event loop and knows no limits of values. It makes the description of the body, and
validates it.
"""

import json
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_snake
from starlette.concurrency import run_in_threadpool
from starlette.routing import compile_path

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.config.limits import excess
from trainyard_protocol.job.parsing import parse
from trainyard_protocol.message import Message
from trainyard_server.domain.access.route_access import Route

_MAX_VALUES = 100_000
_QUICK = 8192  # bytes of JSON that are parsed sooner than a thread begins

_Parse = Callable[[bytes], Any]
_making = threading.RLock()


class JsonRoute(APIRoute):
    """A route whose body, if it declares one, is JSON whatever its content type says. An empty body is `{}`.

    A route with a limit of its own takes large messages: they are parsed as their model at once.

    It has what requests are matched with. FastAPI's part, which is a quarter of the start of a server, is made when it
    is first asked for: by a request to this route, or for the description of the API.
    """

    def __init__(self, row: Route, function: Callable[..., Any], **options: Any) -> None:
        self._is_large = row.body_limit is not None
        self.path, self.endpoint, self.methods = row.path, function, {row.method}
        self.path_regex, self.path_format, self.param_convertors = compile_path(row.path)
        self._options = options

    def __getattr__(self, name: str) -> Any:
        with _making:  # descriptions are made in threads
            options = self.__dict__.pop("_options", None)
            if options is not None:
                super().__init__(self.path, self.endpoint, methods=list(self.methods or ()), **options)
        if name not in self.__dict__:
            raise AttributeError(name)
        return self.__dict__[name]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        parse_body = _parser_of(self.body_field.field_info.annotation, self._is_large)

        async def reading(request: Request) -> Response:
            body = await request.body()
            if len(body) <= _QUICK:
                value = parse_body(body)
            else:
                value = await run_in_threadpool(parse_body, body)
            return await handle(_ParsedRequest(request, value))

        return reading


class _ParsedRequest(Request):
    """A request whose JSON is parsed: FastAPI validates the value, and passes a message on as it is."""

    def __init__(self, request: Request, value: Any) -> None:
        others = [header for header in request.scope["headers"] if header[0] != b"content-type"]
        headers = [*others, (b"content-type", b"application/json")]
        super().__init__({**request.scope, "headers": headers}, request.receive)
        self._value = value

    async def body(self) -> bytes:
        return b"{}"  # not empty: FastAPI goes on to `json`

    async def json(self) -> Any:
        return self._value


def _parser_of(kind: Any, is_large: bool) -> _Parse:
    if isinstance(kind, type) and issubclass(kind, Message):
        return lambda body: parse(kind, _plain(body), to_snake(kind.__name__))
    return partial(_large, kind) if is_large else _plain


def _plain(body: bytes) -> Any:
    """The body as JSON, within the limits of a job."""
    if not body.strip():
        return {}
    try:
        value = json.loads(body)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair cannot be stored
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"Invalid JSON payload received. {error}") from error
    if problem := excess(value):
        raise InvalidArgument(f"Invalid JSON payload received. It {problem}")
    return value


def _large(kind: type[BaseModel], body: bytes) -> BaseModel:
    """The body as a message. More values than a client sends are refused before they are parsed: they take a hundred
    times the memory of `{}`."""
    if _count(body) > _MAX_VALUES:
        raise InvalidArgument(f"The message has more than {_MAX_VALUES} values, or as many texts.")
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        raise RequestValidationError([{**detail, "loc": ("body", *detail["loc"])} for detail in details]) from error


def _count(body: bytes) -> int:
    """The number of texts in a JSON text, or of values, whichever is larger. Marks in a text are none of JSON."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = plain.count(b'"') // 2
    if texts > _MAX_VALUES:
        return texts
    outside = b"".join(plain.split(b'"')[::2])
    return max(texts, sum(map(outside.count, (b"{", b"[", b","))))
