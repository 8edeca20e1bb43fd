"""Pages of the dashboard."""

from collections.abc import Sequence

from trainyard_server.api.routing import Router
from trainyard_server.dashboard.pages import api_reference, cluster, files, job, jobs, logs, metrics
from trainyard_server.dashboard.pages.people import audit, sign_in, tokens

ROUTERS: Sequence[Router] = [
    sign_in.router,
    tokens.router,
    jobs.router,
    job.router,
    logs.router,
    metrics.router,
    files.router,
    cluster.router,
    audit.router,
    api_reference.router,
]
