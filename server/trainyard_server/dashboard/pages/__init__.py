"""Pages of the dashboard."""

from collections.abc import Sequence

from trainyard_server.api.routing import Router
from trainyard_server.dashboard.pages import (
    api_reference,
    cluster,
    compare,
    config,
    files,
    job,
    jobs,
    logs,
    metrics,
    new,
    tracked,
    usage,
)
from trainyard_server.dashboard.pages.people import audit, notifications, sign_in, single_sign_on, tokens

ROUTERS: Sequence[Router] = [
    sign_in.router,
    single_sign_on.router,
    tokens.router,
    notifications.router,
    jobs.router,
    compare.router,
    job.router,
    logs.router,
    metrics.router,
    config.router,
    files.router,
    new.router,
    tracked.router,
    cluster.router,
    usage.router,
    audit.router,
    api_reference.router,
]
