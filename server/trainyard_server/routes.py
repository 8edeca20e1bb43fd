"""All routes of the server, in the order in which they are tried, and the access table that they declare."""

from collections.abc import Sequence

from fastapi import FastAPI
from fastapi.routing import APIRoute

from trainyard_server.api.agents import agent, agent_attachments, packages, uploads
from trainyard_server.api.description import discovery, openapi
from trainyard_server.api.google import (
    batch,
    cloud_logging,
    custom_jobs,
    google_access,
    google_resources,
    object_storage,
    v1,
    vertex,
)
from trainyard_server.api.middleware import audit
from trainyard_server.api.own import (
    accounting,
    agents,
    attachments,
    comparisons,
    experiments,
    extensions,
    files,
    health,
    logs,
    monitoring,
    notifications,
    origins,
    people,
    secrets,
    stored,
)
from trainyard_server.api.routing import Router
from trainyard_server.api.tracking import mlflow, mlflow_artifacts, mlflow_models, mlflow_rest
from trainyard_server.dashboard import pages, static_files
from trainyard_server.domain.access.route_access import AccessTable

ROUTERS: Sequence[Router] = [
    # Those that are called most come early.
    agent.router,
    google_resources.router,
    v1.router,
    custom_jobs.router,
    vertex.router,
    discovery.router,
    openapi.router,
    google_access.router,
    batch.router,
    cloud_logging.router,
    health.router,
    extensions.router,
    experiments.router,
    comparisons.router,
    mlflow.router,
    mlflow_models.router,
    mlflow_artifacts.router,
    mlflow_rest.router,
    attachments.router,
    agent_attachments.router,
    people.router,
    secrets.router,
    notifications.router,
    monitoring.router,
    accounting.router,
    stored.router,
    audit.router,
    agents.router,
    logs.router,
    files.router,
    origins.router,
    object_storage.router,
    uploads.router,
    packages.router,
    static_files.router,
    *pages.ROUTERS,
]
ACCESS = AccessTable(row for router in ROUTERS for row in router.rows)


def add_routes(app: FastAPI) -> None:
    """Add all routes. Raises ValueError if one does not say who may call it."""
    for router in ROUTERS:
        # Not by `include_router`, which makes each route a second time, with the first request.
        app.router.routes.extend(router.routes)
    ACCESS.check(
        (method, route.path) for route in app.routes if isinstance(route, APIRoute) for method in route.methods or ()
    )
