"""Settings of the server."""

from dataclasses import dataclass, field
from pathlib import Path

from trainyard_protocol.wire.sync import StallPolicy
from trainyard_server.config.oidc_options import OidcOptions
from trainyard_server.domain.access.permissions import Token
from trainyard_server.domain.lifecycle.stalls import StallAction

GRACE_S = 30.0

LEAST_LEASE_S = 4 * GRACE_S
"""An agent stops its replicas their grace before the end of its lease, and must not do so at every hiccup."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one server. Times are seconds, sizes are bytes."""

    data_dir: Path
    """The directory of the database (unless `database` is set), the logs and the uploaded packages."""

    database: str = field(default="", repr=False)
    """The database of jobs, runs and events, as `postgresql+psycopg://user:password@host/database`; "": SQLite in
    `data_dir`. Several server processes may share it if they also share `data_dir`."""

    tokens: tuple[Token, ...] = ()
    """The tokens of all callers, each with a role and a name. Without tokens, every call is refused."""

    allowed_hosts: tuple[str, ...] = ()
    """Host names that requests may be sent to, such as that of a proxy, besides addresses, localhost and names below
    it."""

    google_domain: str = ""
    """The universe domain of Google's clients, with the port; "": none has a name here."""

    google_ca: str = field(default="", repr=False)
    """The certificate of the authority that signs for these names (PEM)."""

    oidc: OidcOptions | None = None
    """The issuer of single sign-on; None: people sign in with tokens only."""

    machine_types: Path | None = None
    """A file with machine types and scale tiers of the site, which override the built-in ones."""

    quotas: Path | None = None
    """The quota file. Without one there are no limits."""

    regions: tuple[str, ...] = ()
    """The regions that jobs may name; without any, all are accepted, and none has a meaning."""

    check_packages: bool = False
    """Whether a job is refused when the server cannot read one of its packages on gs://."""

    job_dir_roots: tuple[Path, ...] = ()
    """Job-dirs on the server's file system are shown only below PROJECT/OWNER of these directories."""

    job_dir_buckets: tuple[str, ...] = ()
    """Job-dirs on gs:// are shown with the server's own credentials only below PROJECT/OWNER of these URLs,
    `gs://BUCKET/...`; with `one_user` anywhere below them, and `gs://` allows all. Those of an emulator are always
    shown."""

    default_job_dir: str = ""
    """A job without jobDir gets the directory `PROJECT/OWNER/JOB` below this path or `gs://` URL; "": it has none."""

    one_user: bool = False
    """All jobs are one person's: job-dirs may lie anywhere below the roots, and the default is `PROJECT/JOB`."""

    storage_emulator: str = ""
    """The emulator of gs:// for the files of jobs; "": the one that the job's agent reports, else Google's service."""

    storage: str = ""
    """The storage behind `/storage/v1`, as `http://HOST:PORT` or `https://storage.googleapis.com`; "":
    `storage_emulator`, if there is one."""

    retries: int = 3
    """Maximum number of new runs of a job after infrastructure failures."""

    backoff_first_s: float = 1.0
    """Backoff before the first new run; doubled for each further run."""

    backoff_max_s: float = 60.0
    """Maximum backoff before a new run."""

    lease_s: float = 600.0
    """How long an agent may be silent before its replicas count as lost, if there are several agents: each has a lease.
    The only agent of an installation is waited for indefinitely."""

    silent_after_s: float = 30.0
    """How long an agent may be silent before its replicas are shown as UNKNOWN."""

    grace_s: float = GRACE_S
    """Grace period of replicas between SIGTERM and SIGKILL."""

    stall_action: StallAction = StallAction.RESTART
    """The action for a stalled run: `restart` stops it and starts a new one, as after other infrastructure failures;
    `report` only reports it. The label `trainyard_stall_action` of a job overrides it."""

    stall_least_s: float = 300.0
    """Minimum time without progress before a replica counts as stalled, unless `stall_limit_s` is set. As long may a
    run print nothing and use no CPU before that is reported."""

    stall_factor: float = 10.0
    """A replica counts as stalled after this multiple of its longest recent interval between progress reports."""

    stall_limit_s: float | None = None
    """Fixed time without progress after which a replica counts as stalled; None: by its history. The label
    `trainyard_stall_limit` of a job overrides it."""

    sync_wait_max_s: float = 20.0
    """Maximum duration of an agent's long poll."""

    tick_s: float = 1.0
    """Interval of the scheduler: time limits, silent agents and the queue."""

    scheduler_lease_s: float = 15.0
    """Lease of the server process that schedules, among several on one database. Another takes over when it expires."""

    ping_s: float = 15.0
    """Interval of keep-alive comments in idle event streams."""

    upload_limit: int = 512 * 2**20
    """Maximum size of an uploaded package."""

    disk_reserve: int = 256 * 2**20
    """Free space on the disk of `data_dir` that is reserved for existing jobs. With less, no job and no package is
    accepted."""

    body_limit: int = 4 * 2**20
    """Maximum size of any other request body."""

    requests_per_s: float = 100.0
    """Requests a second of one person, on each server process; 0: no limit. Ten seconds' worth of them at once."""

    storage_requests_per_s: float = 1000.0
    """The same for calls of `/storage/v1` and its like, which do not count for `requests_per_s`."""

    event_streams: int = 100
    """Open event streams of one person, on each server process: live pages and followed logs; 0: no limit."""

    queued_jobs: int = 1000
    """Queued jobs of one owner in one project; 0: no limit."""

    log_quota: int = 2**30
    """Maximum size of the log of a job; 0: no limit. Lines beyond it are dropped, with a notice."""

    keep_jobs_s: float | None = None
    """How long after its end a job is deleted, with its log and its usage; None: never."""

    keep_log_bytes: int | None = None
    """Maximum size of the logs of all jobs together; None: no limit. Beyond it the logs of ended jobs are removed, the
    oldest first, and their records stay."""

    keep_audit_s: float | None = 365 * 86400.0
    """How long rows of the audit are kept; None: for ever."""

    audit_file: Path | None = None
    """A file that gets each row of the audit as a line of JSON."""

    usage_points: int = 2000
    """Maximum number of usage points of a replica; beyond it they are downsampled."""

    last_lines: int = 10
    """Number of last log lines of the failed replica in a verdict."""

    durable: bool = True
    """Whether writes wait for the disk (fsync), so that they survive a power failure. A killed process loses nothing
    either way; tests disable it."""

    run_loops: bool = True
    """Whether the background loops run. Tests disable them and call `tick` themselves."""

    @property
    def secrets_key(self) -> Path:
        """The file with the key of all secrets."""
        return self.data_dir / "keys" / "secrets"

    @property
    def longest_hold_s(self) -> float:
        """Effective duration of a long poll: short enough that its agent does not count as silent and renews its lease
        in time."""
        return min(self.sync_wait_max_s, self.silent_after_s * 2 / 3, self.lease_s / 4)

    @property
    def stall_policy(self) -> StallPolicy:
        return StallPolicy(
            least_s=self.stall_least_s,
            factor=self.stall_factor,
            limit_s=self.stall_limit_s,
            silent_s=self.stall_limit_s or self.stall_least_s,
        )
