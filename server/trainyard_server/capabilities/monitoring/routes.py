"""Figures for a monitoring system."""

from fastapi import Request
from fastapi.responses import Response

from trainyard_server.api.dependencies import Cases
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.monitoring.exposition import Exposition
from trainyard_server.domain.access.route_access import METRICS, Access

router = Router()


class MetricsText(Response):
    media_type = "text/plain"


@router.get(METRICS, Access.METRICS, "figures for Prometheus, as OpenMetrics", response_class=MetricsText)
def metrics(request: Request, cases: Cases) -> Response:
    """The figures of this moment."""
    content, content_type = cases.of(Exposition).render(request.headers.get("accept", ""))
    return Response(content, headers={"Content-Type": content_type, "Cache-Control": "no-store"})
