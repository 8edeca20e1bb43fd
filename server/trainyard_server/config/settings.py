"""Settings of the server, apart from those of its network and of its capabilities."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.settings import number, required, setting
from trainyard_protocol.wire.peers import SHORT_LEASE_S
from trainyard_protocol.wire.sync import StallPolicy
from trainyard_server.config.network import read_host_name
from trainyard_server.config.quota_entries import read_keep_jobs
from trainyard_server.config.token_files import read_token
from trainyard_server.domain.access.permissions import Token
from trainyard_server.domain.lifecycle.stalls import StallAction
from trainyard_server.domain.retention import ALL

GRACE_S = 30.0

LEAST_LEASE_S = 4 * GRACE_S
"""An agent stops its replicas their grace before the end of its lease, and must not do so at every hiccup."""

_GOOGLE = "https://storage.googleapis.com"

_GS = "gs://"
_DAY_S = 86_400.0
_LONGEST_AUDIT_DAYS = 36_500
_UNLIMITED = "0 (no limit) or more"


class CapabilitySettings:
    """Settings of a capability: a frozen dataclass, whose fields have defaults."""

    __slots__ = ()

    def applied(self, settings: "Settings") -> "Settings":
        """The server's settings with what follows from these. Raises InvalidArgument for settings that do not go
        together."""
        return settings


_Own = TypeVar("_Own", bound=CapabilitySettings)


def _storage(text: str) -> str:
    scheme, _, host = text.partition("://")
    if scheme not in ("http", "https") or not host.strip("/"):
        raise InvalidArgument(f"is http://HOST:PORT or {_GOOGLE}; this is {text!r}.")
    return text


def _absolute(text: str) -> str:
    return str(Path(text).absolute())


def _job_dir_root(text: str) -> str:
    return text if text.startswith(_GS) else _absolute(text)


def _keep_jobs(text: str) -> float | None:
    try:
        time = read_keep_jobs(text)
    except ValueError as error:
        raise InvalidArgument(f"{error}.") from error
    return None if time == ALL else time.total_seconds()


def _keep_audit(text: str) -> float | None:
    days = number(int, 0, _LONGEST_AUDIT_DAYS, f"0 (for ever) to {_LONGEST_AUDIT_DAYS} days")(text)
    return days * _DAY_S or None


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one server. Times are seconds, sizes are bytes. Fields without `setting` are internal: set by the
    server itself, or by tests."""

    data_dir: Path = required(
        "the directory of the database, the logs and the uploaded packages. It is closed to others at the start (mode "
        "0700, with a line in the log); one of another user that is open is refused",
        metavar="DIRECTORY",
    )
    database: str = setting(
        "",
        "a PostgreSQL database, `postgresql+psycopg://user:password@host/database` (the extra "
        "`trainyard[postgresql]`), which several servers with the same data directory may share",
        metavar="URL",
        default_text="SQLite in the data directory",
        is_secret=True,
    )
    tokens: tuple[Token, ...] = setting(
        (),
        "a file with the token of a viewer, submitter, admin, agent or monitoring system (`metrics`), and its owner, "
        "as in `submitter:alice=FILE`; once for each token ([roles](../tutorials/team.md)). Without tokens "
        "all calls are refused",
        "--token-file",
        metavar="ROLE[:NAME]=FILE",
        read=read_token,
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "a host name that a proxy in front of the server passes on, such as `trainyard.example.com`. Requests to other "
        "names are refused, except addresses, `localhost` and names below it, and the names in `--tls-cert` "
        "([access](../tutorials/team.md#sessions-of-browsers))",
        "--allowed-host",
        metavar="NAME",
        read=read_host_name,
    )
    google_domain: str = ""
    """The universe domain of Google's clients, with the port."""
    google_ca: str = field(default="", repr=False)
    """The certificate of the authority for these names, which the server makes in `keys/` of its data directory."""
    https_address: str = ""
    """`--https-address`, of the network's settings."""
    public_url: str = ""
    """The address of the dashboard in browsers."""
    options: tuple["CapabilitySettings", ...] = ()
    """The settings of capabilities; those that are not given are the default ones."""
    peer_url: str = ""
    """`--peer-url`, of the network's settings."""
    machine_types: Path | None = setting(
        None,
        "the site's own machine types and scale tiers (YAML; [machines](../tutorials/second-machine.md))",
        metavar="FILE",
    )
    quotas: Path | None = setting(
        None,
        "what each project may use at the same time, and which images "
        "(YAML; [quotas](../how-to/sharing.md#limit-a-project))",
        metavar="FILE",
    )
    regions: tuple[str, ...] = setting(
        (),
        "a region that jobs may name, such as `us-central1`. Without it every region is accepted",
        "--region",
        metavar="NAME",
    )
    check_packages: bool = setting(
        False,
        "refuse a job with a package on `gs://` that this server cannot read, with its own credentials or at its "
        "`--storage`, as AI Platform did; at most 20 s. For sites where the server may read what the agents may: "
        "whoever may submit learns which objects exist there",
    )
    job_dir_roots: tuple[str, ...] = setting(
        (),
        "job-dirs below PROJECT/OWNER of this directory of the server's machine, or of this `gs://BUCKET` with the "
        "server's own credentials, may be shown "
        "([files](../tutorials/team.md#files-that-the-server-shows)); with `--one-user` all below it, "
        "and `gs://` is every bucket. Those of an emulator are always shown",
        "--job-dir-root",
        metavar="DIRECTORY",
        read=_job_dir_root,
    )
    default_job_dir: str = setting(
        "",
        "a job without jobDir gets the directory PROJECT/OWNER/JOB below this path or `gs://` URL, named in its "
        "environment",
        metavar="DIRECTORY",
    )
    new_default_job_dir: str = setting(
        "",
        "in place of `--default-job-dir` for jobs that are submitted from the first start with it on, while jobs of "
        "before keep theirs: PROJECT/OWNER/JOB below this path or `gs://` URL. In `gs://NAME-{project}` each project "
        "has a bucket of its own, which belongs to it",
        metavar="DIRECTORY",
        read=_job_dir_root,
    )
    shared_job_dirs: tuple[str, ...] = setting(
        (),
        "every machine sees this directory at the same path, as on NFS: a job with its job-dir below may have "
        "replicas on several agents, as one on `gs://` may "
        "([gangs](../how-to/sharing.md#run-a-gang-over-several-machines))",
        "--shared-job-dirs",
        metavar="DIRECTORY",
        read=_absolute,
    )
    one_user: bool = setting(
        False,
        "all jobs are one person's: job-dirs may lie anywhere below `--job-dir-root` instead of below its "
        "PROJECT/OWNER, and `--default-job-dir` gives PROJECT/JOB. `trainyard up` gives it",
    )
    storage_emulator: str = ""
    """The emulator of `gs://` for the files of a job: the variable `STORAGE_EMULATOR_HOST`. "": the one that the job's
    agent reports, else Google Cloud Storage."""
    storage: str = setting(
        "",
        "the storage behind `/storage/v1` ([storage](../how-to/data.md#use-gs-with-tokens)), with the API of Google "
        f"Cloud Storage: `http://HOST:PORT`, or {_GOOGLE} with the credentials of the server's environment",
        metavar="URL",
        read=_storage,
        default_text="$STORAGE_EMULATOR_HOST",
    )
    retries: int = setting(
        3,
        "new runs in a row that a job gets after infrastructure failures before it fails; counted anew whenever a run "
        "has reached a newer checkpoint or step than those before it "
        "([the verdict](../explanation/reliability.md#the-verdict-is-right))",
        metavar="N",
        read=number(int, 0),
    )
    backoff_first_s: float = 1.0
    """The pause before the first new run; each further one doubles it."""
    backoff_max_s: float = 60.0
    """The longest pause before a new run."""
    lease_s: float = setting(
        600.0,
        f"how long an agent may be silent before its replicas count as lost, at least {LEAST_LEASE_S:g}; only where "
        "there are several agents ([what an outage costs](../how-to/server.md#when-the-server-is-away))",
        "--lease-seconds",
        metavar="SECONDS",
        read=number(
            float,
            LEAST_LEASE_S,
            rule=f"at least {LEAST_LEASE_S:g}, four times the grace period of {GRACE_S:g} s: agents stop their "
            "replicas before their lease ends",
        ),
    )
    long_leases: bool = setting(
        False,
        "give each agent the lease of `--lease-seconds`; else agents that reach each other have one of "
        f"{SHORT_LEASE_S:g} s, which they keep by a majority while the server is away "
        "([what an outage costs](../how-to/server.md#when-the-server-is-away))",
    )
    silent_after_s: float = 30.0
    """An agent that is silent for so long has its replicas shown as UNKNOWN."""
    grace_s: float = GRACE_S
    """The time between SIGTERM and SIGKILL of a replica."""
    stall_action: StallAction = StallAction.RESTART
    """The answer to a stalled run. The label `trainyard_stall_action` of a job overrides it."""
    stall_least_s: float = 300.0
    """A replica is not stalled earlier than this after its last step, unless `stall_limit_s` is set. As long may a run
    print nothing and use no CPU before that is reported."""
    stall_factor: float = 10.0
    """A replica is stalled after this many times the longest recent time between two steps."""
    stall_limit_s: float | None = None
    """A replica is stalled after this long, whatever its history. The label `trainyard_stall_limit` of a job overrides
    it."""
    sync_wait_max_s: float = 20.0
    """The longest time that an agent's sync is held while nothing changes."""
    tick_s: float = 1.0
    """The interval at which time limits, silent agents and the queue are checked without another event."""
    scheduler_lease_s: float = 15.0
    """The time without a heartbeat after which another server on the same database runs the scheduler."""
    ping_s: float = 15.0
    """The interval of keep-alive comments of an idle event stream."""
    upload_limit: int = 512 * 2**20
    """The largest package that may be uploaded."""
    disk_reserve: int = 256 * 2**20
    """Kept free on the disk of `data_dir` for running jobs: with less, no job and no package is accepted, and a package
    that is being received is dropped (503)."""
    body_limit: int = 2**20
    """The largest body of a request; reports of agents, batches and some records of jobs may be larger."""
    requests_per_s: float = setting(
        100.0,
        "requests of one person, on each server process, 0 for no limit ([limits by "
        "caller](../how-to/server.md#limits)). Ten seconds' worth of them may come at once",
        "--requests-per-second",
        metavar="N",
        read=number(float, 0, rule=_UNLIMITED),
    )
    storage_requests_per_s: float = setting(
        1000.0,
        "calls of one person to the storage (`/storage/v1`), which do not count for `--requests-per-second`, 0 for no "
        "limit",
        "--storage-requests-per-second",
        metavar="N",
        read=number(float, 0, rule=_UNLIMITED),
    )
    event_streams: int = setting(
        100,
        "live pages and followed logs that one person may have open, on each server process, 0 for no limit",
        metavar="N",
        read=number(int, 0, rule=_UNLIMITED),
    )
    attachments: int = setting(
        10,
        "commands in replicas (`jobs exec`, `jobs shell`) and forwarders of ports that one person may have open, on "
        "all servers together, 0 for none",
        "--attachments",
        metavar="N",
        read=number(int, 0, rule="0 (none) or more"),
    )
    attachment_idle_s: float = setting(
        3600.0,
        "end one of these after so many seconds without a byte in either direction",
        "--attachment-idle",
        metavar="SECONDS",
        read=number(float, 1, rule="1 or more seconds"),
        default_text="3600",
    )
    queued_jobs: int = setting(
        1000,
        "queued jobs that one owner may have in one project, 0 for no limit",
        metavar="N",
        read=number(int, 0, rule=_UNLIMITED),
        default_text="1000, with `--one-user` 0",
    )
    log_quota: int = setting(
        2**30,
        "maximum size of the log of a job, 0 for no limit; what exceeds it is dropped, with a notice "
        "([logs](../how-to/follow-jobs.md))",
        metavar="BYTES",
        read=number(int, 0, rule="0 (no quota) or more bytes"),
        default_text="1 GiB",
    )
    logged_points_of_metric: int = setting(
        100_000,
        "points of one metric that a program logs through MLflow and that are kept; beyond, they are thinned, with a "
        "notice in the job's log ([metrics](../how-to/metrics.md))",
        "--logged-points-of-metric",
        metavar="N",
        read=number(int, 1000, rule="1000 or more points"),
        default_text="100000",
    )
    logged_points_of_job: int = setting(
        1_000_000,
        "points of all metrics of one job that are logged through MLflow and kept; beyond, they are thinned",
        "--logged-points-of-job",
        metavar="N",
        read=number(int, 1000, rule="1000 or more points"),
        default_text="1000000",
    )
    keep_jobs_s: float | None = setting(
        None,
        "delete jobs this long after their end, such as `90d`, with their logs ([retention](../how-to/operate.md))",
        "--keep-jobs",
        metavar="DURATION",
        read=_keep_jobs,
        default_text="all",
    )
    keep_audit_s: float | None = setting(
        365 * _DAY_S,
        "keep rows of the audit this long, 0 forever ([audit](../explanation/security.md))",
        "--keep-audit",
        metavar="DAYS",
        read=_keep_audit,
        default_text="365",
    )
    audit_file: Path | None = setting(
        None,
        "append each row of the audit to this file, as a line of JSON ([audit](../explanation/security.md))",
        metavar="FILE",
    )
    usage_points: int = 2000
    """Points stored of one replica's resource usage; beyond that, neighbours are merged."""
    last_lines: int = 10
    """The number of the failed replica's last log lines that a verdict quotes."""
    durable: bool = True
    """Whether writes wait for the disk (fsync), so that they survive a power failure; a killed process loses nothing
    either way. Tests switch it off."""
    rehearsal: bool = setting(
        False,
        "only answer: move no job, send nothing, remove nothing. `trainyard rehearse` gives it to the server that it "
        "starts on a backup",
    )
    doctor: bool = setting(
        False,
        "print in which state the database is, as JSON, in place of serving: `trainyard doctor` does so while no "
        "server runs",
    )
    run_loops: bool = True
    """Whether the background loops run; tests switch them off and call `tick` themselves."""

    def of(self, kind: type[_Own]) -> _Own:
        """The settings of a capability."""
        return next((options for options in self.options if isinstance(options, kind)), None) or kind()

    @property
    def only_operators_submit(self) -> bool:
        """Whether jobs have the rights of the user of this service, which others reach: what a job is, and what it
        loads, is then for operators to say."""
        return self.one_user and bool(self.https_address)

    @property
    def job_dir_paths(self) -> tuple[Path, ...]:
        """The directories of `job_dir_roots`."""
        return tuple(Path(root) for root in self.job_dir_roots if not root.startswith(_GS))

    @property
    def job_dir_buckets(self) -> tuple[str, ...]:
        """The `gs://` URLs of `job_dir_roots`."""
        return tuple(root for root in self.job_dir_roots if root.startswith(_GS))

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
