"""The use cases of a server, built from its settings."""

import hashlib
import hmac
import time
from collections.abc import Sequence
from typing import TypeVar

from trainyard_protocol.job.machines import load_catalog
from trainyard_server.capability import Capability
from trainyard_server.config.quota_file import QuotaFile
from trainyard_server.config.settings import Settings
from trainyard_server.context import Backend, Clock, system_clock
from trainyard_server.control.controller import Controller
from trainyard_server.domain.access.permissions import check_tokens
from trainyard_server.domain.access.run_tokens import RunTokens
from trainyard_server.domain.access.sessions import Sessions
from trainyard_server.services.agents.agent_sync import AgentSync
from trainyard_server.services.agents.agents import Agents
from trainyard_server.services.agents.log_chunks import LogChunks
from trainyard_server.services.agents.packages import Packages
from trainyard_server.services.health.health import HealthChecks
from trainyard_server.services.jobs.job_lists import JobLists
from trainyard_server.services.jobs.jobs import Jobs
from trainyard_server.services.jobs.program_packing import ProgramPacking
from trainyard_server.services.logs.batches import LogExecutors
from trainyard_server.services.logs.job_status import JobStatusReader
from trainyard_server.services.logs.pages import LogPages
from trainyard_server.services.logs.streaming import LogStreaming
from trainyard_server.services.measurements.job_files import JobFiles
from trainyard_server.services.measurements.metrics import Metrics
from trainyard_server.services.measurements.usage import UsageQueries
from trainyard_server.services.measurements.written_metrics import WrittenMetrics
from trainyard_server.services.people.audit import Audit
from trainyard_server.services.people.guess_limits import GuessLimits
from trainyard_server.services.people.limits import CallerLimits, RateLimit, StreamLimit
from trainyard_server.services.people.people import People
from trainyard_server.services.people.principals import Principals, RevokedSessions
from trainyard_server.services.people.sign_in import SignIn
from trainyard_server.services.views.cluster import ClusterOverview
from trainyard_server.services.views.job_details import JobDetails
from trainyard_server.services.views.job_groups import JobGroups
from trainyard_server.services.views.job_search import JobSearch
from trainyard_server.services.views.recent_jobs import RecentJobs
from trainyard_server.services.views.run_table import RunTables
from trainyard_server.services.views.saved_views import SavedViews
from trainyard_server.services.views.studies import Studies
from trainyard_server.storage.agent_liveness import AgentLiveness, Stopwatch
from trainyard_server.storage.audit_file import AuditFile
from trainyard_server.storage.db.base import installation
from trainyard_server.storage.db.repository import JobEvents
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.default_job_dirs import DefaultJobDirs
from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.storage.key_files import key_of
from trainyard_server.storage.logs.store import LogStore
from trainyard_server.storage.membership import Membership
from trainyard_server.storage.observations import Observations
from trainyard_server.storage.progress import ProgressTracker
from trainyard_server.storage.uploads import UploadStore
from trainyard_server.storage.usage.store import UsageStore

_Service = TypeVar("_Service")


class UseCases:
    """The use cases of a server, as `app.state.use_cases`, on an opened data directory. Each attribute has the name of
    its module or class; those of capabilities are found by their class."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock = system_clock,
        stopwatch: Stopwatch = time.monotonic,
        capabilities: Sequence[Capability] = (),
    ) -> None:
        """The caller closes `backend.store`. Raises InvalidArgument for a file of machine types or quotas that cannot
        be used and for duplicate tokens, OSError for an unusable data directory."""
        check_tokens(settings.tokens)
        audit_file = AuditFile(settings.audit_file) if settings.audit_file is not None else None
        backend = self.backend = _backend(settings, capabilities, clock, stopwatch)
        self.stopwatch = stopwatch
        self.key = key_of(settings.data_dir / "keys" / "sessions")
        self.controller = Controller(backend)
        self.controller.restoration.begin()
        self.limits = CallerLimits(
            rate=RateLimit(settings.requests_per_s, stopwatch),
            storage=RateLimit(settings.storage_requests_per_s, stopwatch, "calls of the storage"),
            streams=StreamLimit(settings.event_streams),
        )
        self.guesses = GuessLimits(stopwatch)
        self.sessions = Sessions(self.key)
        self.revoked_sessions = RevokedSessions(backend.store, backend.notifier, clock)
        self.credentials = [kind for item in capabilities for kind in item.credentials(settings, self.key)]
        self.run_tokens = RunTokens(self.key)
        self.principals = Principals(
            backend.store,
            settings.tokens,
            self.revoked_sessions,
            backend.notifier,
            clock,
            credentials=self.credentials,
            run_tokens=self.run_tokens,
        )
        self.sign_in = SignIn(backend, self.sessions, self.principals, self.revoked_sessions, self.guesses)
        self.people = People(backend)
        self.audit = Audit(backend, audit_file)
        self.agents = Agents(backend, self.controller)
        peer_key = hmac.digest(self.key, b"answers of agents to each other", hashlib.sha256).hex()
        self.log_chunks = LogChunks(backend, self.controller)
        self.agent_sync = AgentSync(backend, self.controller, self.run_tokens, peer_key)
        self.packages = Packages(backend, self.key)
        self.program_packing = ProgramPacking(backend)
        self.jobs = Jobs(backend, self.controller)
        self.job_lists = JobLists(backend)
        self.job_details = JobDetails(backend)
        self.job_search = JobSearch(backend)
        self.run_tables = RunTables(backend, self.job_search)
        self.recent_jobs = RecentJobs(backend)
        self.job_groups = JobGroups(backend)
        self.saved_views = SavedViews(backend)
        self.cluster = ClusterOverview(backend)
        self.studies = Studies(backend)
        self.job_files = JobFiles(backend)
        self.metrics = Metrics(backend, self.job_files)
        self.written_metrics = WrittenMetrics(backend, self.job_files, self.metrics)
        self.usage = UsageQueries(backend)
        self.log_executors = LogExecutors()
        self.log_streaming = LogStreaming(
            backend, JobStatusReader(self.controller, self.job_details), self.log_executors
        )
        self.log_pages = LogPages(backend, self.log_executors)
        self.health = HealthChecks(backend, stopwatch)
        self._services: dict[type, object] = {}
        for capability in capabilities:
            self._services.update((type(service), service) for service in capability.services(self))

    def find(self, kind: type[_Service]) -> _Service | None:
        """The service of a capability; None where the server has none."""
        service = self._services.get(kind)
        return service if isinstance(service, kind) else None

    def of(self, kind: type[_Service]) -> _Service:
        """The service of a capability. Raises LookupError where the server has none."""
        if (service := self.find(kind)) is None:
            raise LookupError(f"This server has no {kind.__name__}.")
        return service


def _backend(settings: Settings, capabilities: Sequence[Capability], clock: Clock, stopwatch: Stopwatch) -> Backend:
    catalog = load_catalog(settings.machine_types)
    quota_file = QuotaFile(settings.quotas)
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    logs = LogStore(settings.data_dir / "logs", settings.durable)
    store = _store(settings, [item.job_events for item in capabilities if item.job_events is not None])
    return Backend(
        settings=settings,
        capabilities=capabilities,
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
        membership=Membership(stopwatch),
        default_job_dirs=DefaultJobDirs.noted(settings.data_dir, settings.new_default_job_dir, clock()),
        observations=Observations(),
    )


def _store(settings: Settings, job_events: Sequence[JobEvents]) -> Store:
    if settings.database:
        store = Store(settings.database, settings.durable, job_events)
    else:
        store = Store.at(settings.data_dir, settings.durable, job_events)
    try:
        installation.join(store, settings.data_dir)
    except BaseException:
        store.close()
        raise
    return store
