"""Composition root: builds the application from its settings."""

import asyncio
import time
from collections.abc import AsyncIterator
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
from trainyard_server.api.middleware.google_calls import GoogleCalls
from trainyard_server.api.middleware.hosts import HostCheck
from trainyard_server.api.middleware.limits import LimitCheck
from trainyard_server.api.middleware.request_ids import RequestIds
from trainyard_server.api.middleware.request_times import RequestTimes
from trainyard_server.api.middleware.security_headers import SecurityHeaders
from trainyard_server.api.middleware.storage_names import StorageNames
from trainyard_server.background import flush_forever, measure_forever, notify_forever, tick_forever
from trainyard_server.config.settings import Settings
from trainyard_server.context import Clock, system_clock
from trainyard_server.control.leader_election import LeaderElection
from trainyard_server.dashboard.views import Dashboard
from trainyard_server.routes import ACCESS, add_routes
from trainyard_server.storage.agent_liveness import Stopwatch
from trainyard_server.use_cases import UseCases


def create_app(settings: Settings, clock: Clock = system_clock, stopwatch: Stopwatch = time.monotonic) -> FastAPI:
    """The server as an ASGI application; `app.state.use_cases` has its use cases.

    Opens the data directory and closes it at shutdown. Raises InvalidArgument for an invalid file of machine types or
    quotas and for duplicate tokens, OSError for an unusable data directory.
    """
    use_cases = UseCases(settings, clock, stopwatch)
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
            ticking, flushing = tick_forever(use_cases, leadership), flush_forever(use_cases)
            measuring, notifying = measure_forever(use_cases, leadership), notify_forever(use_cases, leadership)
            loops = [asyncio.create_task(loop) for loop in (ticking, flushing, measuring, notifying)]
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
            await use_cases.sender.close()
            await use_cases.object_storage.close()
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
    app.state.access = ACCESS
    dashboard = app.state.dashboard = Dashboard(backend.notifier, settings.ping_s)
    app.state.error_page = dashboard.error
    app.add_middleware(BodyLimit, most_bytes=settings.body_limit)
    app.add_middleware(LimitCheck, limits=use_cases.limits)
    app.add_middleware(
        Authentication,
        access=ACCESS,
        sessions=use_cases.sessions,
        principals=use_cases.principals,
        guesses=use_cases.guesses,
        clock=clock,
    )
    app.add_middleware(AuditMiddleware, access=ACCESS, audit=use_cases.audit, clock=clock)
    app.add_middleware(GoogleCalls)
    app.add_middleware(Compression)
    app.add_middleware(StorageNames, domain=settings.google_domain)
    app.add_middleware(HostCheck, names=settings.allowed_hosts)
    app.add_middleware(RequestTimes, observations=backend.observations)
    app.add_middleware(RequestIds)
    app.add_middleware(SecurityHeaders)  # the last one added is the outermost
    errors.install(app)
    add_routes(app)
    return app
