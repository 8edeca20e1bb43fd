"""Every knob of the server, in one frozen value that the composition root hands down."""

from dataclasses import dataclass, field
from pathlib import Path

from trainyard_protocol.sync import StallPolicy
from trainyard_server.domain.lifecycle.stalls import Action
from trainyard_server.domain.permissions import Token


@dataclass(frozen=True, slots=True)
class Settings:
    """What may differ between two servers. Times are seconds, sizes are bytes."""

    data_dir: Path
    """Where everything is kept: the database (unless `database` names one), the logs and the uploaded packages."""

    database: str = field(default="", repr=False)
    """Where jobs, runs and events are, as `postgresql+psycopg://user:password@host/database`; "": SQLite, in
    `data_dir`. Several server processes may share it, if they share `data_dir`, too."""

    tokens: tuple[Token, ...] = ()
    """Who may call, and as what: several of each role, each with a name. Without any nobody may."""

    machine_types: Path | None = None
    """The site's own machine types and scale tiers, laid over the shipped ones."""

    quotas: Path | None = None
    """What each project may use at the same time. Without the file: everything."""

    job_dir_roots: tuple[Path, ...] = ()
    """What of the server's machine may be shown of jobs: job-dirs that are paths below one of these."""

    job_dir_buckets: tuple[str, ...] = ()
    """Below which addresses, `gs://BUCKET/...`, job-dirs may be shown with the server's own credentials; `gs://`: all
    that they can read. An emulator needs none, and all that it has is shown."""

    storage_emulator: str = ""
    """What stands in for gs:// when the files of a job are looked at; "": what the job's agent says, else Google's."""

    retries: int = 3
    """How many new runs a job gets after infrastructure failures before it fails."""

    backoff_first_s: float = 1.0
    """The pause before the first new run; each further one doubles it."""

    backoff_max_s: float = 60.0
    """The longest pause before a new run."""

    lease_s: float = 600.0
    """How long an agent may be silent before its replicas count as lost. It holds only where there are
    several agents; the only agent of an installation is waited for without end."""

    silent_after_s: float = 30.0
    """How long an agent may be silent before its replicas are shown as UNKNOWN."""

    grace_s: float = 30.0
    """What replicas get between SIGTERM and SIGKILL."""

    stall_action: Action = Action.RESTART
    """What follows when a run stands still: `restart` stops it, and a new run follows as after other infrastructure
    failures; `report` says so and leaves it alone. A job's label `trainyard_stall_action` overrides it."""

    stall_least_s: float = 300.0
    """A replica that reports its steps never counts as stalled sooner after its last sign, unless a limit is set."""

    stall_factor: float = 10.0
    """It counts as stalled after so many times the longest that it has lately taken from one sign to the next."""

    stall_limit_s: float | None = None
    """It counts as stalled after so long, whatever it took before; unset: by its own history. A job's label
    `trainyard_stall_limit` overrides it."""

    sync_wait_max_s: float = 20.0
    """How long an agent's sync is held at most while there is nothing to say."""

    tick_s: float = 1.0
    """How often time limits, silence and the queue are looked at when nothing else happens."""

    scheduler_lease_s: float = 15.0
    """Of several server processes on one database one ticks; after so long without a sign of it another does."""

    ping_s: float = 15.0
    """How often a log stream with nothing to say sends a comment, so that nobody on the way closes it."""

    upload_limit: int = 512 * 2**20
    """The largest package that may be uploaded."""

    disk_reserve: int = 256 * 2**20
    """What is kept free on the disk of `data_dir` for the jobs that are here: with less, no job and no package is
    taken any more."""

    body_limit: int = 16 * 2**20
    """The largest body of any other request."""

    log_quota: int = 2**30
    """How many bytes of log are kept of one job; 0: all. What goes over it is not kept, with a notice."""

    scrub_every_s: float = 86400.0
    """How long all logs stand between two rounds in which they are read to find what the disk has damaged; 0: never."""

    usage_points: int = 2000
    """How many points are kept of what one replica uses; of more, neighbours become one."""

    last_lines: int = 10
    """How many of the failed replica's last log lines a verdict quotes."""

    durable: bool = True
    """Whether what is accepted waits for the disk, so that it survives a power failure. A process that is
    killed loses nothing either way; tests switch it off."""

    run_loops: bool = True
    """Whether the application ticks by itself. Tests switch it off and tick by hand."""

    @property
    def longest_hold_s(self) -> float:
        """How long a sync is really held: never so long that its own agent would count as silent, or believe
        that its lease is over."""
        return min(self.sync_wait_max_s, self.silent_after_s * 2 / 3, self.granted_lease_s / 4)

    @property
    def stall_policy(self) -> StallPolicy:
        return StallPolicy(least_s=self.stall_least_s, factor=self.stall_factor, limit_s=self.stall_limit_s)

    @property
    def granted_lease_s(self) -> float:
        """What an agent is told: short enough to have stopped its replicas before `lease_s` is over."""
        return self.lease_s - self.grace_s if self.lease_s > 2 * self.grace_s else self.lease_s / 2
