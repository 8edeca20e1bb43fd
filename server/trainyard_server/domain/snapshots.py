"""Snapshots of jobs, runs and replicas: the values that the lifecycle and the scheduler decide with. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from trainyard_protocol.answers.jobs import Verdict
from trainyard_protocol.fields import seconds
from trainyard_protocol.job.cluster import TrialOrder
from trainyard_protocol.job.keys.scheduling import DEFAULT_MAX_RUNNING_TIME_S, Band
from trainyard_protocol.job.machines import ReplicaRequest
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.states import JobState, ReplicaState, RunState
from trainyard_protocol.wire.observations import Stall
from trainyard_protocol.wire.sync import ExitReport
from trainyard_server.domain.lifecycle.stalls import StallAction, StalledReplica
from trainyard_server.domain.scheduling.avoidance import Avoidance
from trainyard_server.domain.scheduling.resources import Needs


@dataclass(frozen=True, slots=True)
class Reached:
    """The newest checkpoint and the last step that runs reported; None: none was reported."""

    checkpoint: int | None = None
    step: int | None = None

    def is_beyond(self, other: "Reached") -> bool:
        """Whether its checkpoint or its step is newer."""
        pairs = ((self.checkpoint, other.checkpoint), (self.step, other.step))
        return any(mine is not None and (theirs is None or mine > theirs) for mine, theirs in pairs)


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    task: str
    state: ReplicaState
    address: str = ""
    started_at: datetime | None = None
    exit: ExitReport | None = None
    log_complete: bool = False
    """Nobody waits for more lines: its agent has sent the end, or is lost itself."""
    step: int | None = None
    durable_step: int | None = None
    """The step of its newest checkpoint."""
    stall: Stall | None = None
    stacks: str = ""
    waits: str = ""
    part: str = ""
    """The part of its run that it belongs to."""

    @property
    def has_run(self) -> bool:
        return self.state is ReplicaState.RUNNING or (self.exit is not None and self.started_at is not None)


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A run; or, where an agent reports it, its part there."""

    run_id: str
    number: int
    state: RunState
    replicas: tuple[ReplicaSnapshot, ...]
    stalled: Verdict | None = None
    """The verdict of a run that is stopped because it stalled."""
    is_spread: bool = False
    """It has parts on several agents, which know each other's addresses."""

    @property
    def members(self) -> tuple[StalledReplica, ...]:
        return tuple(
            StalledReplica(r.task, r.stall, r.stacks, r.step is not None, r.part, r.state is ReplicaState.RUNNING)
            for r in self.replicas
        )

    @property
    def reached(self) -> Reached:
        checkpoints = [r.durable_step for r in self.replicas if r.durable_step is not None]
        steps = [r.step for r in self.replicas if r.step is not None]
        return Reached(max(checkpoints, default=None), max(steps, default=None))

    @property
    def complete(self) -> bool:
        """Whether every replica has exited and every log is complete."""
        return all(r.state is ReplicaState.EXITED and r.log_complete for r in self.replicas)


def workers_of(gang: Iterable[ReplicaRequest]) -> list[ReplicaRequest]:
    return [request for request in gang if request.task.type == "worker"]


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A job and its live run, None while there is none. `gang` is never empty. `restarts` are the runs of its
    evaluators alone, beside the live run, in order.

    `started_at` is when the job was first RUNNING; a new run does not change it. No new run starts before
    `backoff_until`.
    """

    key: int
    project: str
    job_id: str
    state: JobState
    training_input: TrainingInput
    gang: tuple[ReplicaRequest, ...]
    created_at: datetime
    queued_at: datetime
    owner: str = ""
    priority: int = 0
    run_limit_s: float | None = None
    """The longest running time of its band when it was submitted; None: any."""
    started_at: datetime | None = None
    backoff_until: datetime | None = None
    is_held: bool = False
    """It is queued, and may not start yet."""
    retries_used: int = 0
    """New runs after infrastructure failures since a run got further than those before it."""
    rules_used: tuple[int, ...] = ()
    """The retry rules, by their numbers from 1, by which the runs before the live one were followed by another."""
    reached_before: Reached = Reached()
    """The progress of the runs before the live one."""
    stop_message: str = ""
    stall_action: StallAction | None = None
    run: RunSnapshot | None = None
    restarts: tuple[RunSnapshot, ...] = ()
    trial: TrialOrder | None = None
    """Set for a trial, where its variables are of interest."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Those of capabilities, where they are of interest."""
    avoids: Avoidance | None = None
    """The agent that a queued job avoids, since its last run failed of that machine; None: none."""

    def backs_off(self, now: datetime) -> bool:
        """Whether its next run has to wait. A clock that was set back ends the pause, which would last for as long."""
        return self.backoff_until is not None and self.queued_at <= now < self.backoff_until

    @property
    def is_retry(self) -> bool:
        """Whether a run of it has failed before."""
        return self.backoff_until is not None

    @property
    def least_workers(self) -> int:
        """The fewest workers that are enough; 0: it needs all."""
        return self.training_input.scheduling.min_workers if self.training_input.scheduling is not None else 0

    def smaller(self) -> Iterator["JobSnapshot"]:
        """The job with fewer workers, if they may be fewer: with the most first."""
        for count in range(len(workers_of(self.gang)) - 1, self.least_workers - 1, -1) if self.least_workers else ():
            fewer = (each for each in self.gang if each.task.type != "worker" or each.task.index < count)
            yield replace(self, gang=tuple(fewer))

    def pauses(self, now: datetime) -> Iterator[datetime]:
        """The ends of what holds its next run back now: its backoff, and the time in which it avoids an agent."""
        if self.backoff_until is not None and self.backs_off(now):
            yield self.backoff_until
        if self.avoids is not None and self.avoids.applies(now):
            yield self.avoids.until

    def avoided(self, now: datetime) -> str:
        """The agent that its next run avoids now; "" without one."""
        return self.avoids.agent_id if self.avoids is not None and self.avoids.applies(now) else ""

    @property
    def band(self) -> Band:
        """The band that it asks for."""
        scheduling = self.training_input.scheduling
        return scheduling.band if scheduling else Band.NORMAL

    @property
    def max_running_s(self) -> float:
        scheduling = self.training_input.scheduling
        own = seconds(scheduling.max_running_time) if scheduling else DEFAULT_MAX_RUNNING_TIME_S
        return own if self.run_limit_s is None else min(own, self.run_limit_s)

    @property
    def max_wait_s(self) -> float | None:
        scheduling = self.training_input.scheduling
        return seconds(scheduling.max_wait_time) if scheduling and scheduling.max_wait_time else None

    @property
    def needs(self) -> Needs:
        """The needs that agents fulfil or do not, whatever they hold."""
        mounts = frozenset(mount.name for mount in self.training_input.mounts)
        return Needs(self.needs_images, mounts, self.project if mounts else "")

    @property
    def needs_images(self) -> bool:
        """Whether its replicas run in a container image of the user's."""
        return bool(self.training_input.image_uri)
