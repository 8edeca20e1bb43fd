"""Routes of a server in the order in which they are tried, and the access table that they declare."""

from collections.abc import Iterable, Sequence

from fastapi import FastAPI
from fastapi.routing import APIRoute

from trainyard_server.api import v1
from trainyard_server.api.agents import agent, packages, uploads
from trainyard_server.api.description import openapi
from trainyard_server.api.middleware import audit
from trainyard_server.api.own import agents, experiments, files, health, jobs, logs, measurements, people, status
from trainyard_server.api.routing import Router
from trainyard_server.capability import Capability
from trainyard_server.dashboard import pages, static_files
from trainyard_server.domain.access.route_access import AccessTable

_KERNEL: Sequence[Router] = [
    # Those that are called most come early.
    agent.router,
    v1.router,
    openapi.router,
    health.router,
    status.router,
    jobs.router,
    measurements.router,
    experiments.router,
    people.router,
    audit.router,
    agents.router,
    logs.router,
    files.router,
    uploads.router,
    packages.router,
    static_files.router,
    *pages.ROUTERS,
]


def routers_of(capabilities: Iterable[Capability]) -> Sequence[Router]:
    """The routes of the kernel, then those of capabilities."""
    return [*_KERNEL, *(router for capability in capabilities for router in capability.routers)]


def access_of(routers: Iterable[Router]) -> AccessTable:
    """The table of what the routes declare."""
    return AccessTable(row for router in routers for row in router.rows)


def add_routes(app: FastAPI, routers: Sequence[Router], access: AccessTable) -> None:
    """Add all routes. Raises ValueError if one does not say who may call it."""
    for router in routers:
        # Not by `include_router`, which makes each route a second time, with the first request.
        app.router.routes.extend(router.routes)
    access.check(
        (method, route.path) for route in app.routes if isinstance(route, APIRoute) for method in route.methods or ()
    )
