"""Dependencies of the routes: the use cases, the caller, and bodies that have no model."""

from typing import Annotated, Any

from fastapi import Body, Depends, Query, Request, Security
from fastapi.security import APIKeyHeader

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.wire.agents import AGENT_KEY
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.use_cases import UseCases


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


_AGENT_KEY = APIKeyHeader(
    name=AGENT_KEY, scheme_name="agentKey", description="The key that the agent created for itself.", auto_error=False
)


async def _agent_key(key: Annotated[str | None, Security(_AGENT_KEY)]) -> AgentKey:
    return AgentKey(key or "")


CallingAgentKey = Annotated[AgentKey, Depends(_agent_key)]
"""The key of the agent that calls. A call without one gets 401."""


async def _raw_body(request: Request) -> bytes:
    return await request.body()


RawBody = Annotated[bytes, Depends(_raw_body)]

JsonBody = Annotated[Any, Body(json_schema_extra={"type": "object"})]
"""A body as plain JSON, for messages whose errors and answers repeat it as it was sent."""


def within(least: int | None = None, most: int | None = None) -> Any:
    """A number of the query whose limits are checked by the use case, and described in `/openapi.json`."""
    limits = {"minimum": least, "maximum": most}
    return Query(json_schema_extra={name: limit for name, limit in limits.items() if limit is not None})


async def _alt(alt: Annotated[str, Query(json_schema_extra={"enum": ["json"]})] = "json") -> None:
    """Checks the response format that Google's clients send with every call."""
    if alt != "json":
        raise InvalidArgument(Violation("alt", f"only json is supported; this is {alt!r}."))


JsonOnly = Depends(_alt)
