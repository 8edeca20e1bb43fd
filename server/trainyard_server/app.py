"""Composition root: builds the application from its settings."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

import trainyard_protocol
from trainyard_server.api import errors
from trainyard_server.api.description.operations import DESCRIPTION, TAGS
from trainyard_server.api.middleware.audit import AuditMiddleware
from trainyard_server.api.middleware.authentication import Authentication
from trainyard_server.api.middleware.body_limits import BodyLimit
from trainyard_server.api.middleware.compression import Compression
from trainyard_server.api.middleware.hosts import HostCheck
from trainyard_server.api.middleware.limits import LimitCheck
from trainyard_server.api.middleware.request_ids import RequestIds
from trainyard_server.api.middleware.request_times import RequestTimes
from trainyard_server.api.middleware.security_headers import SecurityHeaders
from trainyard_server.background import flush_forever, loop_forever, measure_forever, tick_forever
from trainyard_server.capabilities.registry import CAPABILITIES
from trainyard_server.capability import Capability
from trainyard_server.config.settings import Settings
from trainyard_server.context import Clock, system_clock
from trainyard_server.control.leader_election import LeaderElection
from trainyard_server.dashboard.views import Dashboard
from trainyard_server.routes import access_of, add_routes, routers_of
from trainyard_server.storage.agent_liveness import Stopwatch
from trainyard_server.use_cases import UseCases

ROUTERS = routers_of(CAPABILITIES)
ACCESS = access_of(ROUTERS)


def create_app(
    settings: Settings,
    clock: Clock = system_clock,
    stopwatch: Stopwatch = time.monotonic,
    capabilities: Sequence[Capability] = CAPABILITIES,
) -> FastAPI:
    """The server as an ASGI application; `app.state.use_cases` has its use cases.

    Opens the data directory and closes it at shutdown. Raises InvalidArgument for an invalid file of machine types or
    quotas and for duplicate tokens, OSError for an unusable data directory.
    """
    use_cases = UseCases(settings, clock, stopwatch, capabilities)
    routers, access = ROUTERS, ACCESS
    if capabilities is not CAPABILITIES:
        routers = routers_of(capabilities)
        access = access_of(routers)
    backend = use_cases.backend
    leadership = LeaderElection(backend.store, stopwatch, settings.scheduler_lease_s)
    bus = None
    if not backend.store.exclusive:
        from trainyard_server.storage.events.postgres import PostgresNotifications

        bus = PostgresNotifications(settings.database, backend.notifier)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        loops = []
        if settings.run_loops:
            work = [tick_forever(use_cases, leadership), flush_forever(use_cases)]
            work.append(measure_forever(use_cases, leadership))
            work += [loop_forever(loop, use_cases, leadership) for item in capabilities for loop in item.loops]
            loops = [asyncio.create_task(loop) for loop in work]
        if bus is not None:
            bus.start()
        try:
            yield
        finally:
            backend.notifier.close()
            for loop in loops:
                with suppress(asyncio.CancelledError):
                    await loop
            if loops:
                await run_in_threadpool(leadership.release)
            await run_in_threadpool(use_cases.audit.write_counts, closing=True)
            for capability in capabilities:
                if capability.close is not None:
                    await capability.close(use_cases)
            use_cases.health.close()
            use_cases.metrics.close()
            use_cases.job_files.close()
            use_cases.log_executors.close()
            if bus is not None:
                bus.close()
            backend.store.close()

    app = FastAPI(
        title="Trainyard",
        version=trainyard_protocol.__version__,
        lifespan=lifespan,
        description=DESCRIPTION,
        license_info={"name": "Apache-2.0"},
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # it is a route with a row in the access table: `api.description.openapi`
    )
    app.state.use_cases = use_cases
    app.state.access = access
    dashboard = app.state.dashboard = Dashboard(
        backend.notifier,
        settings.ping_s,
        [link for capability in capabilities for link in capability.links],
        [row.path for row in access.rows if row.is_page],
        [card for capability in capabilities for card in capability.job_cards],
    )
    app.state.error_page = dashboard.error
    app.add_middleware(BodyLimit, most_bytes=settings.body_limit)
    app.add_middleware(LimitCheck, limits=use_cases.limits)
    app.add_middleware(
        Authentication,
        access=access,
        sessions=use_cases.sessions,
        principals=use_cases.principals,
        guesses=use_cases.guesses,
        clock=clock,
    )
    app.add_middleware(AuditMiddleware, access=access, audit=use_cases.audit, clock=clock)
    middleware = [added for capability in capabilities for added in capability.middleware]
    for added in middleware:
        if added.reads_answers:
            app.add_middleware(added.make, settings)
    app.add_middleware(Compression)
    for added in middleware:
        if not added.reads_answers:
            app.add_middleware(added.make, settings)
    app.add_middleware(HostCheck, names=settings.allowed_hosts)
    app.add_middleware(RequestTimes, observations=backend.observations)
    app.add_middleware(RequestIds)
    app.add_middleware(SecurityHeaders)  # the last one added is the outermost
    errors.install(app)
    add_routes(app, routers, access)
    return app
