"""Routes of the worker agents."""

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse

from trainyard_protocol.sync import LogChunk, LogReceipt, SyncRequest, SyncResponse
from trainyard_protocol.usage import UsageBatch, UsageReceipt
from trainyard_server.api.dependencies import Cases, LogBody, RawBody, checked_count, parse_wire

router = APIRouter(prefix="/agent/v1")


@router.post("/sync")
async def sync(body: RawBody, request: Request, cases: Cases) -> SyncResponse:
    async def still_connected() -> bool:
        return not await request.is_disconnected()

    return await cases.agent_sync.sync(parse_wire(SyncRequest, checked_count(body)), still_connected)


@router.post("/runs/{run_id}/replicas/{task}/logs")
def append_logs(run_id: str, task: str, body: LogBody, cases: Cases) -> LogReceipt:
    return cases.agent_sync.append_logs(run_id, task, parse_wire(LogChunk, body))


@router.post("/usage")
def usage(body: RawBody, cases: Cases) -> UsageReceipt:
    return cases.usage.record(parse_wire(UsageBatch, checked_count(body)))


@router.get("/staging/{sha256}/{filename}")
def package(sha256: str, filename: str, cases: Cases) -> FileResponse:
    path = cases.agent_sync.package(sha256, filename)
    return FileResponse(path, media_type="application/octet-stream", filename=filename)
