"""Dependencies of the routes: the use cases, the caller, and the parsing of bodies."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from trainyard_protocol.config.limits import MAX_BYTES, excess
from trainyard_protocol.errors import MAX_VIOLATIONS, InvalidArgument, TooLarge, Violation
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.control.retention import Retention
from trainyard_server.domain.permissions import Caller
from trainyard_server.domain.sessions import Sessions
from trainyard_server.services.agent_sync import AgentSync
from trainyard_server.services.cluster import ClusterOverview
from trainyard_server.services.configs import Configs
from trainyard_server.services.diagnosis import Diagnosis
from trainyard_server.services.health import HealthChecks
from trainyard_server.services.job_details import JobDetails
from trainyard_server.services.job_files import JobFiles
from trainyard_server.services.job_search import JobSearch
from trainyard_server.services.jobs import Jobs
from trainyard_server.services.logs.batches import LogExecutors
from trainyard_server.services.logs.pages import LogPages
from trainyard_server.services.logs.streaming import LogStreaming
from trainyard_server.services.metrics import Metrics
from trainyard_server.services.queue_explanation import QueueExplanation
from trainyard_server.services.sign_in import RevokedSessions, SignIn
from trainyard_server.services.usage import UsageQueries

_M = TypeVar("_M", bound=BaseModel)

_MAX_CHUNK = 8 * 2**20
_MAX_MARKS = 500_000


@dataclass(frozen=True, slots=True)
class UseCases:
    """The use cases of the server, as `app.state.use_cases`. Each attribute has the name of its module or class."""

    backend: Backend
    controller: Controller
    retention: Retention
    jobs: Jobs
    agent_sync: AgentSync
    job_details: JobDetails
    log_streaming: LogStreaming
    log_pages: LogPages
    health: HealthChecks
    diagnosis: Diagnosis
    queue_explanation: QueueExplanation
    configs: Configs
    job_search: JobSearch
    metrics: Metrics
    usage: UsageQueries
    sessions: Sessions
    revoked_sessions: RevokedSessions
    log_executors: LogExecutors
    sign_in: SignIn
    cluster: ClusterOverview
    job_files: JobFiles


def _use_cases(request: Request) -> UseCases:
    use_cases: UseCases = request.app.state.use_cases
    return use_cases


Cases = Annotated[UseCases, Depends(_use_cases)]


def caller_of(request: Request) -> Caller:
    """The authenticated caller. Not for routes that are open to all, which may have none."""
    caller: Caller = request.state.caller
    return caller


AuthenticatedCaller = Annotated[Caller, Depends(caller_of)]


async def _read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises TooLarge as soon as it exceeds the limit."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise TooLarge(f"The request's body is larger than the limit of {limit} bytes.")
    return bytes(body)


async def _raw_body(request: Request, cases: Cases) -> bytes:
    return await _read_body(request, cases.backend.settings.body_limit)


async def _small_body(request: Request, cases: Cases) -> bytes:
    return await _read_body(request, min(MAX_BYTES, cases.backend.settings.body_limit))


async def _log_body(request: Request, cases: Cases) -> bytes:
    return await _read_body(request, min(_MAX_CHUNK, cases.backend.settings.body_limit))


RawBody = Annotated[bytes, Depends(_raw_body)]
LogBody = Annotated[bytes, Depends(_log_body)]
"""A chunk of a log: half a megabyte, or one line of a megabyte, of which JSON may escape every byte."""

SmallBody = Annotated[bytes, Depends(_small_body)]
"""A body of at most one job."""


def _json_body(body: SmallBody) -> Any:
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


def checked_count(body: bytes) -> bytes:
    """The JSON of a report, which has no more values than marks of JSON. Raises InvalidArgument for too many: parsing
    takes a hundred times the memory of `{}`."""
    marks = sum(map(body.count, (b"{", b"[", b",")))
    if marks > _MAX_MARKS:
        raise InvalidArgument(f"The report has more than {_MAX_MARKS} values.")
    return body


def parse_wire(kind: type[_M], body: bytes) -> _M:
    """Parse a message of the wire. Raises InvalidArgument with the first invalid fields."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(kind, error) from error


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


def _alt(alt: str = "json") -> None:
    """Checks the response format that Google's clients send with every call."""
    if alt != "json":
        raise InvalidArgument(Violation("alt", f"only json is supported; this is {alt!r}."))


JsonOnly = Depends(_alt)
