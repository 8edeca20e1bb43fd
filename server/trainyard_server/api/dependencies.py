"""Dependencies of the routes: the use cases, the caller, and the parsing of bodies."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool

from trainyard_protocol.errors import MAX_VIOLATIONS, InvalidArgument, TooLarge, Violation
from trainyard_protocol.job.config.limits import MAX_BYTES, excess
from trainyard_protocol.job.training_input import parse
from trainyard_protocol.message import Message
from trainyard_protocol.wire.agents import AGENT_KEY
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.use_cases import UseCases

_M = TypeVar("_M", bound=BaseModel)
_G = TypeVar("_G", bound=Message)
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


RawBody = Annotated[bytearray, Depends(_raw_body)]


async def _json_body(request: Request, cases: Cases) -> Any:
    """A body of at most one job."""
    body = await _read_body(request, min(MAX_BYTES, cases.backend.settings.body_limit))
    return await _parsed_by(_parsed, body)


JsonBody = Annotated[Any, Depends(_json_body)]


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


@dataclass(frozen=True, slots=True)
class BodyReader(Generic[_M]):
    """Dependency that reads a body and parses it as `kind`, which `/openapi.json` describes."""

    kind: type[_M]
    read: Callable[[type[_M], Request, UseCases], Awaitable[_M]]

    async def __call__(self, request: Request, cases: Cases) -> _M:
        return await self.read(self.kind, request, cases)


def json_of(kind: type[BaseModel]) -> Any:
    """The JSON body, parsed as `kind`: `body: Annotated[Kind, json_of(Kind)]`."""
    return Depends(BodyReader(kind, _read_json))


def message_of(kind: type[Message], root: str) -> Any:
    """The same for a message of Google's, whose errors name fields by their path from `root`."""
    return Depends(BodyReader(kind, partial(_read_message, root)))


def large_json_of(kind: type[BaseModel], limit: int) -> Any:
    """The same for a body of at most `limit` bytes, with few values."""
    return Depends(BodyReader(kind, partial(_read_large, limit)))


def wire_of(kind: type[BaseModel]) -> Any:
    """The message of an agent."""
    return Depends(BodyReader(kind, _read_wire))


def log_of(kind: type[BaseModel]) -> Any:
    """The chunk of a log: half a megabyte, or one line of a megabyte, of which JSON may escape every byte."""
    return Depends(BodyReader(kind, _read_log))


async def _read_json(kind: type[_M], request: Request, cases: UseCases) -> _M:
    value = await _json_body(request, cases)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _refusal(kind, error) from error


async def _read_message(root: str, kind: type[_G], request: Request, cases: UseCases) -> _G:
    return parse(kind, await _json_body(request, cases), root)


async def _read_large(limit: int, kind: type[_M], request: Request, _cases: UseCases) -> _M:
    return await _parsed_by(partial(_parse_wire, kind), await _read_body(request, limit) or bytearray(b"{}"))


async def _read_wire(kind: type[_M], request: Request, cases: UseCases) -> _M:
    return await _parsed_by(partial(_parse_wire, kind), await _raw_body(request, cases))


async def _read_log(kind: type[_M], request: Request, _cases: UseCases) -> _M:
    return await _parsed_by(partial(_parse_wire, kind), await _read_body(request, _MAX_CHUNK))


def within(least: int | None = None, most: int | None = None) -> Any:
    """A number of the query whose limits are checked by the use case, and described in `/openapi.json`."""
    limits = {"minimum": least, "maximum": most}
    return Query(json_schema_extra={name: limit for name, limit in limits.items() if limit is not None})


def _parse_wire(kind: type[_M], body: bytearray) -> _M:
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


def _refusal(kind: type[BaseModel], error: ValidationError) -> InvalidArgument:
    details = error.errors(include_url=False, include_input=False, include_context=False)
    return InvalidArgument(
        [
            Violation(".".join(map(str, detail["loc"])) or kind.__name__, detail["msg"])
            for detail in details[: MAX_VIOLATIONS + 1]
        ]
    )


async def _alt(alt: Annotated[str, Query(json_schema_extra={"enum": ["json"]})] = "json") -> None:
    """Checks the response format that Google's clients send with every call."""
    if alt != "json":
        raise InvalidArgument(Violation("alt", f"only json is supported; this is {alt!r}."))


JsonOnly = Depends(_alt)
