"""Route of Cloud Logging's API: the lines of a job's log."""

from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, JsonOnly, json_of
from trainyard_server.services.logs.entries_list import EntriesPage, EntriesRequest

router = APIRouter(prefix="/v2", dependencies=[JsonOnly])


@router.post("/entries:list", response_model=EntriesPage)
async def list_entries(
    body: Annotated[EntriesRequest, json_of(EntriesRequest)], cases: Cases, caller: AuthenticatedCaller
) -> Response:
    return JSONResponse(await cases.entries_list.page(caller, body))
