"""Page of the HTTP API, open to all: Swagger UI on `/openapi.json`."""

from fastapi import Request
from fastapi.responses import HTMLResponse

from trainyard_server.api.routing import Router
from trainyard_server.dashboard.views import Pages, View
from trainyard_server.domain.access.route_access import API_REFERENCE, Access

router = Router()


@router.get(API_REFERENCE, Access.NOBODY, "the description of this API as a page", response_class=HTMLResponse)
def api_reference(request: Request, pages: Pages) -> HTMLResponse:
    return HTMLResponse(pages.page(request, View("api_reference.html", dict)))
