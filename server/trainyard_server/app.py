"""Composition root: builds the application from its settings."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

import trainyard_protocol
from trainyard_protocol.job.machines import load_catalog
from trainyard_server.api import errors
from trainyard_server.api.dependencies import UseCases
from trainyard_server.api.middleware.audit import AuditMiddleware
from trainyard_server.api.middleware.authentication import Authentication
from trainyard_server.api.middleware.google_calls import GoogleCalls
from trainyard_server.api.middleware.hosts import HostCheck
from trainyard_server.api.middleware.limits import LimitCheck
from trainyard_server.api.middleware.security_headers import SecurityHeaders
from trainyard_server.api.middleware.storage_names import StorageNames
from trainyard_server.background import flush_forever, tick_forever
from trainyard_server.config.quota_file import QuotaFile
from trainyard_server.config.settings import Settings
from trainyard_server.context import Backend, Clock, system_clock
from trainyard_server.control.controller import Controller
from trainyard_server.control.leader_election import LeaderElection
from trainyard_server.control.retention import Retention
from trainyard_server.dashboard.views import Dashboard
from trainyard_server.domain.access.oidc import Attempts
from trainyard_server.domain.access.permissions import check_tokens
from trainyard_server.domain.access.run_tokens import RunTokens
from trainyard_server.domain.access.sessions import Sessions
from trainyard_server.routes import ACCESS, add_routes
from trainyard_server.services.agents.agent_sync import AgentSync
from trainyard_server.services.agents.agents import Agents
from trainyard_server.services.agents.packages import Packages
from trainyard_server.services.google.google_access import GoogleAccess
from trainyard_server.services.google.google_resources import GoogleResources
from trainyard_server.services.google.object_storage import ObjectStorage
from trainyard_server.services.health.diagnosis import Diagnosis
from trainyard_server.services.health.health import HealthChecks
from trainyard_server.services.jobs.jobs import Jobs
from trainyard_server.services.logs.batches import LogExecutors
from trainyard_server.services.logs.entries_list import EntriesList
from trainyard_server.services.logs.job_status import JobStatusReader
from trainyard_server.services.logs.pages import LogPages
from trainyard_server.services.logs.streaming import LogStreaming
from trainyard_server.services.measurements.job_files import JobFiles
from trainyard_server.services.measurements.metrics import Metrics
from trainyard_server.services.measurements.usage import UsageQueries
from trainyard_server.services.people.audit import Audit
from trainyard_server.services.people.guess_limits import GuessLimits
from trainyard_server.services.people.limits import CallerLimits, RateLimit, StreamLimit
from trainyard_server.services.people.people import People
from trainyard_server.services.people.principals import Principals, RevokedSessions
from trainyard_server.services.people.secrets import Secrets
from trainyard_server.services.people.sign_in import SignIn
from trainyard_server.services.people.single_sign_on import SingleSignOn
from trainyard_server.services.views.cluster import ClusterOverview
from trainyard_server.services.views.configs import Configs
from trainyard_server.services.views.job_details import JobDetails
from trainyard_server.services.views.job_search import JobSearch
from trainyard_server.services.views.queue_explanation import QueueExplanation
from trainyard_server.services.views.studies import Studies
from trainyard_server.storage.agent_liveness import AgentLiveness, Stopwatch
from trainyard_server.storage.audit_file import AuditFile
from trainyard_server.storage.db.base import installation
from trainyard_server.storage.db.repository import Store
from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.storage.key_files import key_of
from trainyard_server.storage.logs.store import LogStore
from trainyard_server.storage.progress import ProgressTracker
from trainyard_server.storage.secret_cipher import SecretCipher
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
                use_cases.audit,
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
            await run_in_threadpool(use_cases.audit.write_counts, closing=True)
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
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.use_cases = use_cases
    app.state.access = ACCESS
    dashboard = app.state.dashboard = Dashboard(backend.notifier, settings.ping_s)
    app.state.error_page = dashboard.error
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
    app.add_middleware(StorageNames, domain=settings.google_domain)
    app.add_middleware(HostCheck, names=settings.allowed_hosts)
    app.add_middleware(SecurityHeaders)  # the last one added is the outermost
    errors.install(app)
    add_routes(app)
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
    session_key = key_of(settings.data_dir / "keys" / "sessions")
    audit_file = AuditFile(settings.audit_file) if settings.audit_file is not None else None
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
    guesses = GuessLimits(stopwatch)
    sessions = Sessions(session_key)
    revoked_sessions = RevokedSessions(store, backend.notifier, clock)
    google_keys = None
    if settings.google_domain:
        from trainyard_server.domain.access.google_keys import ServiceAccountKeys

        google_keys = ServiceAccountKeys(session_key, settings.google_domain)
    run_tokens = RunTokens(session_key)
    principals = Principals(
        store,
        settings.tokens,
        revoked_sessions,
        backend.notifier,
        clock,
        single_sign_on=settings.oidc is not None,
        google_keys=google_keys,
        run_tokens=run_tokens,
    )
    signing_in = SignIn(backend, sessions, principals, revoked_sessions, guesses)
    controller = Controller(backend)
    job_files = JobFiles(backend)
    job_details = JobDetails(backend)
    jobs = Jobs(backend, controller)
    project_secrets = Secrets(backend, SecretCipher(settings.secrets_key))
    project_secrets.check_key()
    return UseCases(
        backend=backend,
        controller=controller,
        retention=Retention(backend, controller, stopwatch),
        jobs=jobs,
        google_access=GoogleAccess(backend, google_keys, principals, guesses),
        google_resources=GoogleResources(backend),
        agent_sync=AgentSync(backend, controller, run_tokens),
        job_details=job_details,
        log_streaming=LogStreaming(backend, JobStatusReader(controller, job_details), log_executors),
        log_pages=LogPages(backend, log_executors),
        entries_list=EntriesList(backend, log_executors),
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
        principals=principals,
        packages=Packages(backend, session_key),
        object_storage=ObjectStorage(backend),
        people=People(backend),
        agents=Agents(backend, controller),
        audit=Audit(backend, audit_file),
        secrets=project_secrets,
        job_files=job_files,
        guesses=guesses,
        sign_in=signing_in,
        studies=Studies(backend),
        single_sign_on=_single_sign_on(settings, session_key, signing_in, clock, stopwatch),
        cluster=ClusterOverview(backend),
        limits=CallerLimits(
            rate=RateLimit(settings.requests_per_s, stopwatch),
            storage=RateLimit(settings.storage_requests_per_s, stopwatch, "calls of the storage"),
            streams=StreamLimit(settings.event_streams),
        ),
    )


def _single_sign_on(
    settings: Settings, key: bytes, signing_in: SignIn, clock: Clock, stopwatch: Stopwatch
) -> SingleSignOn | None:
    if settings.oidc is None:
        return None
    from trainyard_server.services.people.oidc_issuer import OidcIssuer

    return SingleSignOn(settings.oidc, OidcIssuer(settings.oidc, stopwatch), Attempts(key), signing_in, clock)
