"""Routes of the worker agents."""

from fastapi import Request

from trainyard_protocol import __version__
from trainyard_protocol.answers.usage import UsageBatch, UsageReceipt
from trainyard_protocol.wire.agents import ServerAbout
from trainyard_protocol.wire.logs import LogChunk, LogReceipt
from trainyard_protocol.wire.sync import SyncRequest, SyncResponse
from trainyard_server.api.dependencies import AuthenticatedCaller, CallingAgentKey, Cases
from trainyard_server.api.json_answer import JsonAnswer
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import UNRECORDED, Access
from trainyard_server.services.agents.agents import name_of

_MAX_REPORT = 4 * 2**20
_MAX_CHUNK = 13 * 2**19
"""A chunk of a log is half a megabyte, or one line of a megabyte, of which JSON may escape every byte."""

router = Router(prefix="/agent/v1", body_limit=_MAX_REPORT)


@router.get("/server", Access.AGENT, "whether an agent may join, and its name")
def about(caller: AuthenticatedCaller) -> ServerAbout:
    """The answer to an agent that wants to know whether it may join."""
    return ServerAbout(version=__version__, agent=name_of(caller))


@router.post("/sync", Access.AGENT, "report what runs, get orders", UNRECORDED)
async def sync(
    body: SyncRequest, request: Request, cases: Cases, caller: AuthenticatedCaller, key: CallingAgentKey
) -> SyncResponse:
    async def still_connected() -> bool:
        return not await request.is_disconnected()

    return await cases.agent_sync.sync(body, key, still_connected, name_of(caller))


@router.post(
    "/runs/{run_id}/replicas/{task}/logs",
    Access.AGENT,
    "log lines",
    UNRECORDED,
    own=True,
    response_model=LogReceipt,
    body_limit=_MAX_CHUNK,
)
def append_logs(run_id: str, task: str, body: LogChunk, cases: Cases, key: CallingAgentKey) -> JsonAnswer:
    return JsonAnswer(cases.log_chunks.append(run_id, task, body, key))


@router.post("/usage", Access.AGENT, "what replicas use", UNRECORDED, response_model=UsageReceipt)
def usage(body: UsageBatch, cases: Cases, key: CallingAgentKey) -> JsonAnswer:
    return JsonAnswer(cases.usage.record(body, key))
