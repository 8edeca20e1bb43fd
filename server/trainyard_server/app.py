"""Composition root: builds the application from its settings."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, Response
from starlette.concurrency import run_in_threadpool

import trainyard_protocol
from trainyard_protocol.health import CheckStatus, Health
from trainyard_protocol.machines import load_catalog
from trainyard_server.api import agent, errors, extensions, files, logs, uploads, v1
from trainyard_server.api.authentication import Authentication
from trainyard_server.api.dependencies import UseCases
from trainyard_server.api.security_headers import SecurityHeaders
from trainyard_server.background import flush_forever, tick_forever
from trainyard_server.config.quota_file import QuotaFile
from trainyard_server.config.settings import Settings
from trainyard_server.context import Backend, Clock, system_clock
from trainyard_server.control.controller import Controller
from trainyard_server.control.leader_election import LeaderElection
from trainyard_server.control.retention import Retention
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
from trainyard_server.services.agent_sync import AgentSync
from trainyard_server.services.cluster import ClusterOverview
from trainyard_server.services.configs import Configs
from trainyard_server.services.diagnosis import Diagnosis
from trainyard_server.services.health import HealthChecks
from trainyard_server.services.job_details import JobDetails
from trainyard_server.services.job_files import JobFiles
from trainyard_server.services.job_search import JobSearch
from trainyard_server.services.jobs import Jobs
from trainyard_server.services.logs.batches import LogExecutors
from trainyard_server.services.logs.job_status import JobStatusReader
from trainyard_server.services.logs.pages import LogPages
from trainyard_server.services.logs.streaming import LogStreaming
from trainyard_server.services.metrics import Metrics
from trainyard_server.services.queue_explanation import QueueExplanation
from trainyard_server.services.sign_in import RevokedSessions, SignIn, SignInRateLimit
from trainyard_server.services.usage import UsageQueries
from trainyard_server.storage.agent_liveness import AgentLiveness, Stopwatch
from trainyard_server.storage.db import installation
from trainyard_server.storage.db.repository import Store
from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.storage.logs.store import LogStore
from trainyard_server.storage.progress import ProgressTracker
from trainyard_server.storage.uploads import UploadStore
from trainyard_server.storage.usage.store import UsageStore


def create_app(
    settings: Settings, clock: Clock = system_clock, stopwatch: Stopwatch = time.monotonic
) -> FastAPI:
    """The server as an ASGI application; `app.state.use_cases` has its use cases.

    Opens the data directory and closes it at shutdown. Raises InvalidArgument for an invalid file of machine types or
    quotas and for duplicate tokens, OSError for an unusable data directory.
    """
    use_cases = build(settings, clock, stopwatch)
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
            ticking = tick_forever(
                use_cases.controller,
                use_cases.retention,
                leadership,
                backend.notifier,
                settings.tick_s,
                use_cases.health.heartbeat,
            )
            flushing = flush_forever(backend.progress, backend.notifier, settings.tick_s)
            loops = [asyncio.create_task(ticking), asyncio.create_task(flushing)]
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
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.use_cases = use_cases
    dashboard = app.state.dashboard = Dashboard(backend.notifier, settings.ping_s)
    app.state.error_page = dashboard.error
    app.add_middleware(
        Authentication, sessions=use_cases.sessions, revoked=use_cases.revoked_sessions, clock=clock
    )
    app.add_middleware(SecurityHeaders)  # the last one added is the outermost
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
    for module in (v1, extensions, logs, files, uploads, agent, static_files, *pages):
        app.include_router(module.router)

    @app.get("/healthz", response_model_exclude_none=True)
    async def healthz(response: Response) -> Health:
        """Open to all: 200 while jobs are accepted and run, else 503."""
        health = await use_cases.health.check()
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
    """Build the use cases on an opened data directory. The caller closes `backend.store`."""
    check_tokens(settings.tokens)
    catalog = load_catalog(settings.machine_types)
    quota_file = QuotaFile(settings.quotas)
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
        progress=ProgressTracker(store, logs),
        usage=UsageStore(settings.data_dir / "usage", settings.usage_points),
        uploads=UploadStore(settings.data_dir / "staging", settings.upload_limit),
        notifier=Notifier(),
        catalog=catalog,
        quota_file=quota_file,
        clock=clock,
        agent_liveness=AgentLiveness(clock, stopwatch, settings.silent_after_s),
    )
    log_executors = LogExecutors()
    sessions = Sessions(settings.tokens)
    revoked_sessions = RevokedSessions(store, backend.notifier, clock)
    controller = Controller(backend)
    job_files = JobFiles(backend)
    job_details = JobDetails(backend)
    jobs = Jobs(backend, controller)
    return UseCases(
        backend=backend,
        controller=controller,
        retention=Retention(backend, controller, stopwatch),
        jobs=jobs,
        agent_sync=AgentSync(backend, controller),
        job_details=job_details,
        log_streaming=LogStreaming(backend, JobStatusReader(controller, job_details), log_executors),
        log_pages=LogPages(backend, log_executors),
        health=HealthChecks(backend, stopwatch),
        diagnosis=Diagnosis(backend),
        queue_explanation=QueueExplanation(backend),
        configs=Configs(backend, jobs, job_details),
        job_search=JobSearch(backend),
        metrics=Metrics(backend, job_files),
        usage=UsageQueries(backend),
        log_executors=log_executors,
        sessions=sessions,
        revoked_sessions=revoked_sessions,
        job_files=job_files,
        sign_in=SignIn(backend, sessions, revoked_sessions, SignInRateLimit()),
        cluster=ClusterOverview(backend),
    )
