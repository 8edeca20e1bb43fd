"""The use cases of a server, built from its settings."""

import hashlib
import hmac
import time
from typing import TYPE_CHECKING

from trainyard_protocol.job.machines import load_catalog
from trainyard_server.config.quota_file import QuotaFile
from trainyard_server.config.settings import Settings
from trainyard_server.context import Backend, Clock, system_clock
from trainyard_server.control.controller import Controller
from trainyard_server.control.fair_share import FairShareUpdate
from trainyard_server.control.idle_gpus import IdleGpus
from trainyard_server.control.retention import Retention
from trainyard_server.control.usage_recording import UsageRecording
from trainyard_server.domain.access.oidc import Attempts
from trainyard_server.domain.access.permissions import check_tokens
from trainyard_server.domain.access.run_tokens import RunTokens
from trainyard_server.domain.access.sessions import Sessions
from trainyard_server.services.accounting.reports import UsageReports
from trainyard_server.services.agents.agent_sync import AgentSync
from trainyard_server.services.agents.agents import Agents
from trainyard_server.services.agents.packages import Packages
from trainyard_server.services.attachments.attachments import Attachments
from trainyard_server.services.backups.backups import Backups
from trainyard_server.services.backups.examination import Examination
from trainyard_server.services.google.custom_jobs import CustomJobs
from trainyard_server.services.google.google_access import GoogleAccess
from trainyard_server.services.google.google_resources import GoogleResources
from trainyard_server.services.google.object_storage import ObjectStorage
from trainyard_server.services.health.debugging import Debugging
from trainyard_server.services.health.diagnosis import Diagnosis
from trainyard_server.services.health.health import HealthChecks
from trainyard_server.services.jobs.jobs import Jobs
from trainyard_server.services.jobs.origins import Origins
from trainyard_server.services.jobs.program_packing import ProgramPacking
from trainyard_server.services.logs.batches import LogExecutors
from trainyard_server.services.logs.entries_list import EntriesList
from trainyard_server.services.logs.job_status import JobStatusReader
from trainyard_server.services.logs.pages import LogPages
from trainyard_server.services.logs.streaming import LogStreaming
from trainyard_server.services.measurements.job_files import JobFiles
from trainyard_server.services.measurements.metrics import Metrics
from trainyard_server.services.measurements.usage import UsageQueries
from trainyard_server.services.measurements.written_metrics import WrittenMetrics
from trainyard_server.services.monitoring.exposition import Exposition
from trainyard_server.services.notifications.channels import Channels
from trainyard_server.services.notifications.mail import Mail
from trainyard_server.services.notifications.sender import Sender
from trainyard_server.services.notifications.webhooks import Webhooks
from trainyard_server.services.people.audit import Audit
from trainyard_server.services.people.guess_limits import GuessLimits
from trainyard_server.services.people.limits import CallerLimits, RateLimit, StreamLimit
from trainyard_server.services.people.people import People
from trainyard_server.services.people.principals import Principals, RevokedSessions
from trainyard_server.services.people.secrets import Secrets
from trainyard_server.services.people.sign_in import SignIn
from trainyard_server.services.people.single_sign_on import SingleSignOn
from trainyard_server.services.tracking.artifacts import TrackedArtifacts
from trainyard_server.services.tracking.logged_models import LoggedModels
from trainyard_server.services.tracking.run_search import RunSearch
from trainyard_server.services.tracking.targets import RunAccess
from trainyard_server.services.tracking.tracking import Tracking
from trainyard_server.services.views.cluster import ClusterOverview
from trainyard_server.services.views.comparisons import Comparisons
from trainyard_server.services.views.configs import Configs
from trainyard_server.services.views.job_details import JobDetails
from trainyard_server.services.views.job_groups import JobGroups
from trainyard_server.services.views.job_search import JobSearch
from trainyard_server.services.views.queue_explanation import QueueExplanation
from trainyard_server.services.views.recent_jobs import RecentJobs
from trainyard_server.services.views.run_table import RunTables
from trainyard_server.services.views.saved_views import SavedViews
from trainyard_server.services.views.standings import Standings
from trainyard_server.services.views.studies import Studies
from trainyard_server.storage.agent_liveness import AgentLiveness, Stopwatch
from trainyard_server.storage.audit_file import AuditFile
from trainyard_server.storage.db.base import installation
from trainyard_server.storage.db.repository import Store
from trainyard_server.storage.default_job_dirs import DefaultJobDirs
from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.storage.key_files import key_of
from trainyard_server.storage.logs.store import LogStore
from trainyard_server.storage.membership import Membership
from trainyard_server.storage.observations import Observations
from trainyard_server.storage.progress import ProgressTracker
from trainyard_server.storage.secret_cipher import SecretCipher
from trainyard_server.storage.uploads import UploadStore
from trainyard_server.storage.usage.store import UsageStore

if TYPE_CHECKING:
    from trainyard_server.domain.access.google_keys import ServiceAccountKeys


class UseCases:
    """The use cases of a server, as `app.state.use_cases`, on an opened data directory. Each attribute has the name of
    its module or class."""

    def __init__(self, settings: Settings, clock: Clock = system_clock, stopwatch: Stopwatch = time.monotonic) -> None:
        """The caller closes `backend.store`. Raises InvalidArgument for a file of machine types or quotas that cannot
        be used and for duplicate tokens, OSError for an unusable data directory."""
        check_tokens(settings.tokens)
        audit_file = AuditFile(settings.audit_file) if settings.audit_file is not None else None
        backend = self.backend = _backend(settings, clock, stopwatch)
        key = key_of(settings.data_dir / "keys" / "sessions")
        self.controller = Controller(backend)
        self.controller.restoration.begin()
        self.usage_recording = UsageRecording(backend)
        self.idle_gpus = IdleGpus(backend, self.controller)
        self.fair_share = FairShareUpdate(backend)
        self.usage_reports = UsageReports(backend)
        self.retention = Retention(backend, stopwatch)
        self.limits = CallerLimits(
            rate=RateLimit(settings.requests_per_s, stopwatch),
            storage=RateLimit(settings.storage_requests_per_s, stopwatch, "calls of the storage"),
            streams=StreamLimit(settings.event_streams),
        )
        self.guesses = GuessLimits(stopwatch)
        self.sessions = Sessions(key)
        self.revoked_sessions = RevokedSessions(backend.store, backend.notifier, clock)
        google_keys = _google_keys(settings, key)
        run_tokens = RunTokens(key)
        self.principals = Principals(
            backend.store,
            settings.tokens,
            self.revoked_sessions,
            backend.notifier,
            clock,
            single_sign_on=settings.oidc is not None,
            google_keys=google_keys,
            run_tokens=run_tokens,
        )
        self.sign_in = SignIn(backend, self.sessions, self.principals, self.revoked_sessions, self.guesses)
        self.single_sign_on = _single_sign_on(settings, key, self.sign_in, clock, stopwatch)
        self.people = People(backend)
        cipher = SecretCipher(settings.secrets_key)
        self.secrets = Secrets(backend, cipher)
        self.secrets.check_key()
        self.audit = Audit(backend, audit_file)
        self.agents = Agents(backend, self.controller)
        peer_key = hmac.digest(key, b"answers of agents to each other", hashlib.sha256).hex()
        self.agent_sync = AgentSync(backend, self.controller, run_tokens, peer_key)
        allow_local = settings.notifications.local_webhooks or (settings.one_user and not settings.https_address)
        webhooks = Webhooks(key, allow_local=allow_local)
        self.sender = Sender(backend, webhooks, Mail(settings.notifications))
        self.channels = Channels(backend, self.sender, key)
        self.packages = Packages(backend, key)
        self.program_packing = ProgramPacking(backend)
        self.jobs = Jobs(backend, self.controller)
        self.attachments = Attachments(backend)
        self.origins = Origins(backend)
        self.job_details = JobDetails(backend)
        self.job_search = JobSearch(backend)
        self.run_tables = RunTables(backend, self.job_search)
        self.recent_jobs = RecentJobs(backend)
        self.job_groups = JobGroups(backend)
        self.saved_views = SavedViews(backend)
        self.standings = Standings(backend)
        self.comparisons = Comparisons(backend)
        self.queue_explanation = QueueExplanation(backend)
        self.configs = Configs(backend, self.jobs, self.job_details)
        self.cluster = ClusterOverview(backend)
        self.studies = Studies(backend)
        self.job_files = JobFiles(backend)
        self.metrics = Metrics(backend, self.job_files)
        run_access = RunAccess(backend, run_tokens)
        self.tracking = Tracking(backend, run_access, self.controller, self.metrics)
        self.run_search = RunSearch(backend, run_access)
        self.logged_models = LoggedModels(backend, run_access, self.controller)
        self.artifacts = TrackedArtifacts(backend, run_access, self.job_files, self.tracking)
        self.written_metrics = WrittenMetrics(backend, self.job_files, self.metrics)
        self.usage = UsageQueries(backend)
        self.log_executors = LogExecutors()
        self.log_streaming = LogStreaming(
            backend, JobStatusReader(self.controller, self.job_details), self.log_executors
        )
        self.log_pages = LogPages(backend, self.log_executors)
        self.entries_list = EntriesList(backend, self.log_executors)
        self.google_access = GoogleAccess(backend, google_keys, self.principals, self.guesses)
        self.google_resources = GoogleResources(backend)
        self.custom_jobs = CustomJobs(backend, self.jobs, self.google_resources)
        self.object_storage = ObjectStorage(backend)
        self.exposition = Exposition(backend)
        self.backups = Backups(backend)
        self.examination = Examination(backend, self.job_details, cipher)
        self.health = HealthChecks(backend, stopwatch)
        self.diagnosis = Diagnosis(backend)
        self.debugging = Debugging(backend)


def _backend(settings: Settings, clock: Clock, stopwatch: Stopwatch) -> Backend:
    catalog = load_catalog(settings.machine_types)
    quota_file = QuotaFile(settings.quotas)
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    logs = LogStore(settings.data_dir / "logs", settings.durable)
    store = _store(settings)
    return Backend(
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
        membership=Membership(stopwatch),
        default_job_dirs=DefaultJobDirs.noted(settings.data_dir, settings.new_default_job_dir, clock()),
        observations=Observations(),
    )


def _store(settings: Settings) -> Store:
    if settings.database:
        store = Store(settings.database, settings.durable)
    else:
        store = Store.at(settings.data_dir, settings.durable)
    try:
        installation.join(store, settings.data_dir)
    except BaseException:
        store.close()
        raise
    return store


def _google_keys(settings: Settings, key: bytes) -> "ServiceAccountKeys | None":
    if not settings.google_domain:
        return None
    from trainyard_server.domain.access.google_keys import ServiceAccountKeys

    return ServiceAccountKeys(key, settings.google_domain)


def _single_sign_on(
    settings: Settings, key: bytes, signing_in: SignIn, clock: Clock, stopwatch: Stopwatch
) -> SingleSignOn | None:
    if settings.oidc is None:
        return None
    from trainyard_server.services.people.oidc_issuer import OidcIssuer

    return SingleSignOn(settings.oidc, OidcIssuer(settings.oidc, stopwatch), Attempts(key), signing_in, clock)
