"""Shared dependencies of the use cases, built once by the composition root."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from trainyard_protocol.job.job_dirs import default_job_dir, has_bucket_of_project, root_of_project
from trainyard_protocol.job.machines import Catalog
from trainyard_protocol.net.gcs import split_url
from trainyard_server.capability import Capability
from trainyard_server.config.quota_file import QuotaFile
from trainyard_server.config.settings import Settings
from trainyard_server.domain.retention import RetentionPolicy
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.spreading import SharedDirs
from trainyard_server.storage.agent_liveness import AgentLiveness
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.default_job_dirs import DefaultJobDirs
from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.storage.logs.store import LogStore
from trainyard_server.storage.membership import Membership
from trainyard_server.storage.observations import Observations
from trainyard_server.storage.progress import ProgressTracker
from trainyard_server.storage.removal_lock import RemovalLock
from trainyard_server.storage.uploads import UploadStore
from trainyard_server.storage.usage.store import UsageStore

Clock = Callable[[], datetime]
"""Returns the current time, with its time zone."""


def system_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Backend:
    """Stores, settings and the clock."""

    settings: Settings
    capabilities: Sequence[Capability]
    store: Store
    logs: LogStore
    progress: ProgressTracker
    usage: UsageStore
    uploads: UploadStore
    notifier: Notifier
    catalog: Catalog
    quota_file: QuotaFile
    clock: Clock
    agent_liveness: AgentLiveness
    membership: Membership
    default_job_dirs: DefaultJobDirs
    observations: Observations

    @property
    def quotas(self) -> Quotas:
        """The quotas in force."""
        return self.quota_file.quotas

    @property
    def shared_dirs(self) -> SharedDirs:
        """The directories that every machine sees."""
        settings = self.settings
        return SharedDirs(settings.shared_job_dirs, settings.new_default_job_dir or settings.default_job_dir)

    @property
    def removal_lock(self) -> RemovalLock:
        """The lock between removals of files and backups."""
        return RemovalLock(self.settings.data_dir)

    @property
    def retention(self) -> RetentionPolicy:
        keep_s = self.settings.keep_jobs_s
        keep_jobs = None if keep_s is None else timedelta(seconds=keep_s)
        return RetentionPolicy(keep_jobs, self.quotas.retention)

    def job_dir(self, project: str, owner: str, job_id: str, given: str, created: datetime) -> str:
        """A job's directory: the jobDir that was given, or else the default of this server when it was created, of a
        trial below that of its study; "" without either."""
        if given:
            return given
        directory, settings = "/".join(job_id.split(".")), self.settings
        if root := self.default_job_dirs.at(created):
            return default_job_dir(root_of_project(root, project), project, owner, directory)
        if not settings.default_job_dir:
            return ""
        return default_job_dir(settings.default_job_dir, project, "" if settings.one_user else owner, directory)

    def default_bucket(self, project: str) -> str:
        """The project's own bucket of default job-dirs; "" where projects have none."""
        root = self.settings.new_default_job_dir
        return split_url(root_of_project(root, project))[0] if has_bucket_of_project(root) else ""
