"""The OpenAPI description of the HTTP API, as FastAPI makes it of the routes: open to all."""

from typing import Any

from fastapi import FastAPI, Request

from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access

router = Router()


@router.get("/openapi.json", Access.NOBODY, "the description of this API, for programs")
def description(request: Request) -> dict[str, Any]:
    app: FastAPI = request.app
    return app.openapi()
