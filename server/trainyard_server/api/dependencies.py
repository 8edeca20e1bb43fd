"""Dependencies of the routes: the use cases, the caller, and the parsing of bodies."""

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from trainyard_protocol.errors import MAX_VIOLATIONS, InvalidArgument, TooLarge, Violation
from trainyard_protocol.job.config.limits import MAX_BYTES, excess
from trainyard_protocol.wire.agents import AGENT_KEY
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.use_cases import UseCases

_M = TypeVar("_M", bound=BaseModel)
_T = TypeVar("_T")

_MAX_CHUNK = 13 * 2**19
_MAX_VALUES = 100_000
_QUICK = 8192  # bytes of JSON that are parsed sooner than a thread begins


# Asynchronous: FastAPI runs other functions in a thread, which takes longer than they do.
async def _use_cases(request: Request) -> UseCases:
    use_cases: UseCases = request.app.state.use_cases
    return use_cases


Cases = Annotated[UseCases, Depends(_use_cases)]


def caller_of(request: Request) -> Caller:
    """The authenticated caller. Not for routes that are open to all, which may have none."""
    caller: Caller = request.state.caller
    return caller


async def _caller(request: Request) -> Caller:
    return caller_of(request)


AuthenticatedCaller = Annotated[Caller, Depends(_caller)]


async def agent_key_of(request: Request) -> AgentKey:
    """The key in the header of an agent's call."""
    return AgentKey(request.headers.get(AGENT_KEY, ""))


CallingAgentKey = Annotated[AgentKey, Depends(agent_key_of)]
"""The key of the agent that calls. A call without one gets 401."""


async def _read_body(request: Request, limit: int) -> bytearray:
    """The whole body. Raises TooLarge as soon as it exceeds the limit."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise TooLarge(f"The request's body is larger than the limit of {limit} bytes.")
    return body


async def _raw_body(request: Request, cases: Cases) -> bytearray:
    return await _read_body(request, cases.backend.settings.body_limit)


async def _small_body(request: Request, cases: Cases) -> bytearray:
    return await _read_body(request, min(MAX_BYTES, cases.backend.settings.body_limit))


async def _log_body(request: Request) -> bytearray:
    return await _read_body(request, _MAX_CHUNK)


RawBody = Annotated[bytearray, Depends(_raw_body)]
LogBody = Annotated[bytearray, Depends(_log_body)]
"""A chunk of a log: half a megabyte, or one line of a megabyte, of which JSON may escape every byte."""

SmallBody = Annotated[bytearray, Depends(_small_body)]
"""A body of at most one job."""


async def _json_body(body: SmallBody) -> Any:
    return await _parsed_by(_parsed, body)


async def _parsed_by(parse: Callable[[bytearray], _T], body: bytearray) -> _T:
    """A small body is parsed here, a larger one by a thread."""
    return parse(body) if len(body) <= _QUICK else await run_in_threadpool(parse, body)


def _parsed(body: bytearray) -> Any:
    """The body as JSON, within the limits of a job; {} for an empty body."""
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


JsonBody = Annotated[Any, Depends(_json_body)]


class JsonReader(Generic[_M]):
    """Dependency that parses a JSON body. `/openapi.json` has the schema of `kind` for it."""

    def __init__(self, kind: type[_M]) -> None:
        self.kind = kind

    async def __call__(self, body: SmallBody) -> _M:
        return parse_request(self.kind, await _json_body(body))


class WireReader(Generic[_M]):
    """Dependency that parses a message of an agent. `/openapi.json` has the schema of `kind` for it."""

    def __init__(self, kind: type[_M]) -> None:
        self.kind = kind

    async def __call__(self, body: RawBody) -> _M:
        return await _parsed_by(partial(parse_wire, self.kind), body)


class LogReader(WireReader[_M]):
    """Dependency that parses a chunk of a log."""

    async def __call__(self, body: LogBody) -> _M:
        return await _parsed_by(partial(parse_wire, self.kind), body)


def json_of(kind: type[BaseModel]) -> Any:
    """The JSON body, parsed as `kind`: `body: Annotated[Kind, json_of(Kind)]`."""
    return Depends(JsonReader(kind))


def within(least: int | None = None, most: int | None = None) -> Any:
    """A number of the query whose limits are checked by the use case, and described in `/openapi.json`."""
    limits = {"minimum": least, "maximum": most}
    return Query(json_schema_extra={name: limit for name, limit in limits.items() if limit is not None})


def parse_wire(kind: type[_M], body: bytearray) -> _M:
    """Parse a message of an agent. Raises InvalidArgument with the first invalid fields, and, before it is parsed, for
    more values than an agent sends: they take a hundred times the memory of `{}`."""
    if _count(body) > _MAX_VALUES:
        raise InvalidArgument(f"The message has more than {_MAX_VALUES} values, or as many texts.")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(kind, error) from error


def _count(body: bytearray) -> int:
    """The number of texts in a JSON text, or of values, whichever is larger. Marks in a text are none of JSON."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = plain.count(b'"') // 2
    if texts > _MAX_VALUES:
        return texts
    outside = b"".join(plain.split(b'"')[::2])
    return max(texts, sum(map(outside.count, (b"{", b"[", b","))))


def parse_request(kind: type[_M], value: object) -> _M:
    """Parse a JsonBody. Raises InvalidArgument with the first invalid fields."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _refusal(kind, error) from error


def _refusal(kind: type[BaseModel], error: ValidationError) -> InvalidArgument:
    details = error.errors(include_url=False, include_input=False, include_context=False)
    return InvalidArgument(
        [
            Violation(".".join(map(str, one["loc"])) or kind.__name__, one["msg"])
            for one in details[: MAX_VIOLATIONS + 1]
        ]
    )


async def _alt(alt: Annotated[str, Query(json_schema_extra={"enum": ["json"]})] = "json") -> None:
    """Checks the response format that Google's clients send with every call."""
    if alt != "json":
        raise InvalidArgument(Violation("alt", f"only json is supported; this is {alt!r}."))


JsonOnly = Depends(_alt)
