"""The composition root: everything is built here, from settings, and nothing when this is imported."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, Response
from starlette.concurrency import run_in_threadpool

import trainyard_protocol
from trainyard_protocol.health import CheckStatus, Health
from trainyard_protocol.machines import load_catalog
from trainyard_server.api import agent, errors, files, logs, v1
from trainyard_server.api import extensions as trainyard
from trainyard_server.api import uploads as upload
from trainyard_server.api.authentication import Authentication
from trainyard_server.api.dependencies import UseCases
from trainyard_server.api.security_headers import SecurityHeaders
from trainyard_server.background import flush_forever, scrub_forever, tick_forever
from trainyard_server.config.quota_file import load_quotas
from trainyard_server.config.settings import Settings
from trainyard_server.context import Backend, Clock, system_clock
from trainyard_server.control.controller import Conductor
from trainyard_server.control.leader_election import Leadership
from trainyard_server.dashboard import static_files
from trainyard_server.dashboard.pages import (
    cluster as cluster_page,
)
from trainyard_server.dashboard.pages import (
    config as config_page,
)
from trainyard_server.dashboard.pages import (
    files as files_page,
)
from trainyard_server.dashboard.pages import (
    job as job_page,
)
from trainyard_server.dashboard.pages import (
    jobs as jobs_page,
)
from trainyard_server.dashboard.pages import (
    logs as logs_page,
)
from trainyard_server.dashboard.pages import (
    metrics as metrics_page,
)
from trainyard_server.dashboard.pages import (
    new as new_page,
)
from trainyard_server.dashboard.pages import (
    sign_in,
)
from trainyard_server.dashboard.views import Dashboard
from trainyard_server.domain.permissions import check_tokens
from trainyard_server.domain.sessions import Sessions
from trainyard_server.services.agent_sync import Syncing
from trainyard_server.services.cluster import Clusters
from trainyard_server.services.configs import Configs
from trainyard_server.services.diagnosis import Diagnosis
from trainyard_server.services.health import HealthChecks
from trainyard_server.services.job_details import Explaining
from trainyard_server.services.job_files import Files
from trainyard_server.services.job_search import Listings
from trainyard_server.services.jobs import Jobs
from trainyard_server.services.logs.executors import LogThreads
from trainyard_server.services.logs.followers import Standings
from trainyard_server.services.logs.pages import LogPaging
from trainyard_server.services.logs.streaming import LogStreaming
from trainyard_server.services.metrics import Metrics
from trainyard_server.services.queue_explanation import Why
from trainyard_server.services.rate_limit import Guesses
from trainyard_server.services.session_revocation import EndedSessions
from trainyard_server.services.sign_in import SigningIn
from trainyard_server.services.usage import Measuring
from trainyard_server.storage.agent_liveness import Hearing, Stopwatch
from trainyard_server.storage.db import installation
from trainyard_server.storage.db.repository import Store
from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.storage.logs.store import LogStore
from trainyard_server.storage.progress import Steps
from trainyard_server.storage.uploads import Staging
from trainyard_server.storage.usage.store import UsageStore


def create_app(
    settings: Settings, clock: Clock = system_clock, stopwatch: Stopwatch = time.monotonic
) -> FastAPI:
    """The whole server as an ASGI application; `app.state.use_cases` is the same without HTTP.

    Opens the data directory at once and closes it when the application shuts down. Raises InvalidArgument
    for a bad machine types or quotas file and for two tokens with the same text, OSError for a directory that cannot
    be used.
    """
    use_cases = build(settings, clock, stopwatch)
    backend = use_cases.backend
    leadership = Leadership(backend.store, stopwatch, settings.scheduler_lease_s)
    bus = None
    if not backend.store.exclusive:
        from trainyard_server.storage.events.postgres import Bus

        bus = Bus(settings.database, backend.notifier)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        loops = []
        if settings.run_loops:
            ticking = tick_forever(
                use_cases.conductor,
                leadership,
                backend.notifier,
                settings.tick_s,
                use_cases.health.pulse,
            )
            flushing = flush_forever(backend.steps, backend.notifier, settings.tick_s)
            loops = [asyncio.create_task(ticking), asyncio.create_task(flushing)]
            if settings.scrub_every_s:
                scrubbing = scrub_forever(backend.logs, backend.notifier, settings.scrub_every_s)
                loops.append(asyncio.create_task(scrubbing))
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
            use_cases.health.close()
            use_cases.files.close()
            use_cases.log_threads.close()
            if bus is not None:
                bus.close()
            backend.store.close()

    app = FastAPI(
        title="Trainyard",
        version=trainyard_protocol.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.use_cases = use_cases
    dashboard = app.state.dashboard = Dashboard(backend.notifier, settings.ping_s)
    app.state.error_page = dashboard.error
    app.add_middleware(
        Authentication, sessions=use_cases.sessions, ended=use_cases.ended_sessions, clock=clock
    )
    app.add_middleware(SecurityHeaders)  # what is added last stands outermost
    errors.install(app)
    pages = (
        sign_in,
        jobs_page,
        job_page,
        logs_page,
        metrics_page,
        config_page,
        files_page,
        new_page,
        cluster_page,
    )
    for module in (v1, trainyard, logs, files, upload, agent, static_files, *pages):
        app.include_router(module.router)

    @app.get("/healthz", response_model_exclude_none=True)
    async def healthz(response: Response) -> Health:
        """Open to all: 200 while jobs are taken and run, 503 while they are not."""
        health = await use_cases.health.look()
        response.headers["Cache-Control"] = "no-store"
        if health.status is CheckStatus.DOWN:
            response.status_code = 503
        return health

    return app


def _store(settings: Settings) -> Store:
    if settings.database:
        return Store(settings.database, settings.durable)
    return Store.at(settings.data_dir, settings.durable)


def build(settings: Settings, clock: Clock = system_clock, stopwatch: Stopwatch = time.monotonic) -> UseCases:
    """The use cases over an opened data directory. Whoever calls this closes `backend.store`."""
    check_tokens(settings.tokens)
    catalog = load_catalog(settings.machine_types)
    quotas = load_quotas(settings.quotas)
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = _store(settings)
    try:
        installation.join(store, settings.data_dir)
    except BaseException:
        store.close()
        raise
    logs = LogStore(settings.data_dir / "logs", settings.durable)
    backend = Backend(
        settings=settings,
        store=store,
        logs=logs,
        steps=Steps(store, logs),
        usage=UsageStore(settings.data_dir / "usage", settings.usage_points),
        staging=Staging(settings.data_dir / "staging", settings.upload_limit),
        notifier=Notifier(),
        catalog=catalog,
        quotas=quotas,
        clock=clock,
        hearing=Hearing(clock, stopwatch, settings.silent_after_s),
    )
    threads = LogThreads()
    sessions = Sessions(settings.tokens)
    ended_sessions = EndedSessions(store, backend.notifier, clock)
    conductor = Conductor(backend)
    explaining = Explaining(backend)
    jobs = Jobs(backend, conductor)
    return UseCases(
        backend=backend,
        conductor=conductor,
        jobs=jobs,
        syncing=Syncing(backend, conductor),
        explaining=explaining,
        streaming=LogStreaming(backend, Standings(backend, conductor, explaining), threads),
        paging=LogPaging(backend, threads),
        health=HealthChecks(backend, stopwatch),
        diagnosis=Diagnosis(backend),
        why=Why(backend),
        configs=Configs(backend, jobs, explaining),
        listings=Listings(backend),
        metrics=Metrics(backend),
        measuring=Measuring(backend),
        log_threads=threads,
        sessions=sessions,
        ended_sessions=ended_sessions,
        files=Files(backend),
        signing_in=SigningIn(backend, sessions, ended_sessions, Guesses()),
        clusters=Clusters(backend),
    )
