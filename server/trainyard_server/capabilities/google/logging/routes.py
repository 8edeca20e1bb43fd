"""Route of Cloud Logging's API: the lines of a job's log."""

from fastapi.responses import JSONResponse, Response

from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, JsonOnly
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.google.logging.entries_list import EntriesList, EntriesPage, EntriesRequest
from trainyard_server.domain.access.route_access import UNRECORDED, Access

router = Router(prefix="/v2", dependencies=[JsonOnly])


@router.post(
    "/entries:list",
    Access.PERSON,
    "lines of a job of a project that you may see",
    UNRECORDED,
    response_model=EntriesPage,
)
async def list_entries(body: EntriesRequest, cases: Cases, caller: AuthenticatedCaller) -> Response:
    return JSONResponse(await cases.of(EntriesList).page(caller, body))
