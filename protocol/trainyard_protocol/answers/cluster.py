"""Answers about the agents, the jobs that have not ended, and the server."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from trainyard_protocol.answers.metrics import Number
from trainyard_protocol.answers.usage import GpuUsage
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.message import Wire
from trainyard_protocol.states import JobState
from trainyard_protocol.wire.agents import Disk, MountOffer, RuntimeOffer, image_runtime, no_room

LeaseKeeper = Literal["majority", "server", "nobody"]
"""Who keeps the lease of an agent: a majority of the agents that reach each other and their server, or the server."""


class AgentLeaseView(Wire):
    """The lease of an agent: it may be silent for `seconds` (None: without limit). `lost_at`: the replicas of a silent
    one count as lost then; None: it is not silent, or they never do."""

    seconds: float | None
    keeper: LeaseKeeper
    lost_at: datetime | None = None

    def text(self, now: datetime) -> str:
        """`45 s by majority`; of a silent agent also how long its replicas do not count as lost yet."""
        if self.seconds is None:
            return "none"
        lease = f"{self.seconds:g} s {'by majority' if self.keeper == 'majority' else 'of the server'}"
        if self.lost_at is None:
            return lease
        left_s = (self.lost_at - now).total_seconds()
        if left_s <= 0:
            return f"{lease}, over"
        if left_s > self.seconds:
            return f"{lease}, which does not answer: {left_s / 3600:.1f} h left"
        return f"{lease}, {left_s:.0f} s left"


class AgentView(Wire):
    """`draining`: it is given no new run; `drain_reason`: why the service decided it, "" if an operator did.
    `failures`: jobs whose runs failed of its machine within the last hour. `runtime` is that of package jobs,
    `runtimes` are all, without their environments. `cpus_given`, `memory_given_bytes`, `gpus_given` (ids, of a
    machine) and `accelerators_given` are held by its runs. `cpu_used` (cores), `memory_used_bytes` and `gpus_used` are
    the sums of the newest samples of its running replicas. `mounts` are those that jobs of visible projects may
    have. `restored`: it is of a backup, and has not called since that was restored. `lease`: None of an older
    server."""

    agent_id: str
    name: str
    runtime: str
    capacity_mode: str
    version: str
    capacity: Capacity
    alive: bool
    last_seen: datetime
    runs: int = 0
    cpus_given: int = 0
    memory_given_bytes: int = 0
    gpus_given: tuple[str, ...] = ()
    accelerators_given: int = 0
    cpu_used: float = 0.0
    memory_used_bytes: int = 0
    gpus_used: tuple[GpuUsage, ...] = ()
    runtimes: tuple[RuntimeOffer, ...] = ()
    kind: str = "host"
    host: str = ""
    draining: bool = False
    drain_reason: str = ""
    failures: tuple[str, ...] = ()
    disks: tuple[Disk, ...] = ()
    mounts: tuple[MountOffer, ...] = ()
    restored: bool = False
    lease: AgentLeaseView | None = None

    @property
    def no_room(self) -> str:
        """The directory of its machine without room, and why: nothing is started there until it has some."""
        return no_room(self.disks) if self.alive else ""

    @property
    def problem(self) -> str:
        """A sentence about an agent that starts nothing although no operator wants that; "" without one."""
        if self.drain_reason:
            undo = f"`trainyard agents drain {self.name} --undo`"
            return f"{self.name} is drained: {self.drain_reason}. Once this is fixed: {undo}."
        if self.restored:
            return (
                f"{self.name} has not called since the backup was restored. Its runs count as lost when they surely "
                f"have ended. If its machine is gone, at once: `trainyard agents remove {self.agent_id}`."
            )
        return f"{self.name} starts nothing: {self.no_room}." if self.no_room else ""

    @property
    def state(self) -> str:
        if not self.alive:
            return "silent, draining" if self.draining else "silent"
        return "draining" if self.draining else "no room" if self.no_room else "alive"

    @property
    def runtime_names(self) -> str:
        """Its runtimes that start runs, as `process + docker`."""
        return " + ".join(runtime.name for runtime in self.runtimes if not runtime.retiring) or self.runtime

    @property
    def runtimes_summary(self) -> str:
        """Which jobs run in what, and what waits for an engine, as a sentence; "" for an agent that reports neither."""
        offers = {offer.name: offer for offer in self.runtimes if not offer.retiring}
        barred = next((offer.problem for offer in self.runtimes if offer.name == "process" and offer.retiring), "")
        if slurm := offers.get("slurm"):
            return f"{slurm.problem or slurm.about}: package jobs wait in Slurm's queue; image jobs do not run here."
        if pods := offers.get("kubernetes"):
            images_only = f"image jobs run as pods; package jobs do not run here: {barred}"
            return f"{pods.problem or pods.about}: {images_only if barred else 'jobs run as pods'}."
        engine = image_runtime(self.runtimes)
        if engine is None:
            all_processes = "All jobs run as processes; image jobs need --runtime auto or docker."
            return all_processes if "process" in offers else ""
        problem = _capitalized(engine.problem)
        if self.runtime == "process":
            if problem:
                return f"{problem}: image jobs wait until one does; package jobs run as processes."
            return f"{engine.about}: image jobs run in containers; package jobs as processes."
        if problem:
            return f"{problem}: jobs wait until one does.{f' {_capitalized(barred)}.' if barred else ''}"
        return f"{engine.about}: jobs run in containers."


def _capitalized(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}"


class ActiveJobView(Wire):
    """A job that has not ended. From `run` on, the fields are those of its latest run: `running` of its `replicas`
    run; `step` to `value` are from its primary replica, which started at `started_at`; `cpu_used` (cores) and
    `memory_used_bytes` are sums of the newest samples, None without one. `attention` is "", stalled, silent or
    restarted."""

    project: str
    job_id: str
    owner: str = ""
    state: JobState
    created_at: datetime
    waiting: str = ""
    position: int = 0
    attention: str = ""
    run: int | None = None
    agent: str = ""
    activity: str = ""
    replicas: int = 0
    running: int = 0
    started_at: datetime | None = None
    first_step: int | None = None
    step: int | None = None
    steps: int | None = None
    step_at: datetime | None = None
    epoch: int | float | None = None
    epochs: int | float | None = None
    metric: str = ""
    value: Number | None = None
    cpus: int = 0
    cpu_used: float | None = None
    memory_bytes: int = 0
    memory_used_bytes: int | None = None


class ActiveJobsView(Wire):
    """All jobs that have not ended: those with a run, the oldest first, then the queue. Very many are cut off: `counts`
    has their numbers by state. `agents` are alive."""

    jobs: tuple[ActiveJobView, ...] = ()
    counts: dict[JobState, int]
    agents: int
    now: datetime


class RetentionView(Wire):
    """The retention of a server: the limit of the site (None: no limit), how many projects have one of their own, and
    what was removed because of them so far."""

    keep_jobs_s: float | None = None
    projects: int = 0
    jobs_deleted: int = 0
    last_removal: datetime | None = None


class ServerStatus(Wire):
    """`retention` is None where everything is kept. `has_storage`: the server answers to gs:// with tokens."""

    version: str
    agents: tuple[AgentView, ...]
    jobs: dict[JobState, int]
    retention: RetentionView | None = None
    has_storage: bool = False


class QuotasView(Wire):
    """The limits in force by name (`jobs`, `vcpus`, `gpus`, accelerator types): of each project that is listed, and of
    all others."""

    default: dict[str, int] = Field(default_factory=dict)
    projects: dict[str, dict[str, int]] = Field(default_factory=dict)
