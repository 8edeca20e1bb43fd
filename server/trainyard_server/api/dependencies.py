"""What the routes share: how they reach the use cases, and how a body is read."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from trainyard_protocol.errors import InvalidArgument, TooLarge, Violation
from trainyard_server.context import Backend
from trainyard_server.control.controller import Conductor
from trainyard_server.domain.permissions import Caller
from trainyard_server.domain.sessions import Sessions
from trainyard_server.services.agent_sync import Syncing
from trainyard_server.services.cluster import Clusters
from trainyard_server.services.configs import Configs
from trainyard_server.services.diagnosis import Diagnosis
from trainyard_server.services.health import HealthChecks
from trainyard_server.services.job_details import Explaining
from trainyard_server.services.job_files import Files
from trainyard_server.services.job_search import Listings
from trainyard_server.services.jobs import Jobs
from trainyard_server.services.logs.executors import LogThreads
from trainyard_server.services.logs.pages import LogPaging
from trainyard_server.services.logs.streaming import LogStreaming
from trainyard_server.services.metrics import Metrics
from trainyard_server.services.queue_explanation import Why
from trainyard_server.services.session_revocation import EndedSessions
from trainyard_server.services.sign_in import SigningIn
from trainyard_server.services.usage import Measuring

_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class UseCases:
    """Everything that can be asked of the server, as `app.state.use_cases`."""

    backend: Backend
    conductor: Conductor
    jobs: Jobs
    syncing: Syncing
    explaining: Explaining
    streaming: LogStreaming
    paging: LogPaging
    health: HealthChecks
    diagnosis: Diagnosis
    why: Why
    configs: Configs
    listings: Listings
    metrics: Metrics
    measuring: Measuring
    sessions: Sessions
    ended_sessions: EndedSessions
    log_threads: LogThreads
    signing_in: SigningIn
    clusters: Clusters
    files: Files


def _use_cases(request: Request) -> UseCases:
    use_cases: UseCases = request.app.state.use_cases
    return use_cases


Cases = Annotated[UseCases, Depends(_use_cases)]


def asker_of(request: Request) -> Caller:
    """Not for what is open to all: there may be nobody."""
    caller: Caller = request.state.caller
    return caller


Asker = Annotated[Caller, Depends(asker_of)]


async def _raw_body(request: Request, cases: Cases) -> bytes:
    """The whole body. Raises TooLarge as soon as it passes the limit."""
    limit = cases.backend.settings.body_limit
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise TooLarge(f"The request's body is larger than the {limit} bytes that are read.")
    return bytes(body)


RawBody = Annotated[bytes, Depends(_raw_body)]


def _json_body(body: RawBody) -> Any:
    """The body as JSON; an empty one is an empty message."""
    if not body.strip():
        return {}
    try:
        value = json.loads(body)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair could not be stored or sent on
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"Invalid JSON payload received. {error}") from error
    return value


JsonBody = Annotated[Any, Depends(_json_body)]


def parse_wire(kind: type[_M], body: bytes) -> _M:
    """A message of the agents' wire. Raises InvalidArgument with every field that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise InvalidArgument(
            [
                Violation(".".join(map(str, one["loc"])) or kind.__name__, one["msg"])
                for one in error.errors(include_url=False)
            ]
        ) from error


def _alt(alt: str = "json") -> None:
    """Google's clients say on every call which form of answer they want."""
    if alt != "json":
        raise InvalidArgument(Violation("alt", f"only json is offered; this is {alt!r}."))


JsonOnly = Depends(_alt)
