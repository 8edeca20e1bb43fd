"""Answers about jobs beyond the v1 API: runs, replicas, events, the verdict."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from trainyard_protocol.answers.metrics import JobMetric, MetricsDigest, TrialMetric
from trainyard_protocol.answers.origin import OriginSummary
from trainyard_protocol.answers.usage import GpuUsage
from trainyard_protocol.message import Wire
from trainyard_protocol.states import JobState, Outcome, Reason, ReplicaState, RunState
from trainyard_protocol.wire.observations import Stall

WITHOUT_GPUS = "without-gpus"
"""The kind of the event of a run with replicas that asked for GPUs and have none."""

CONTINUED = "continued"
"""The kind of the event of a run that reports its first step, and others came before: which step that is behind."""


class Verdict(Wire):
    """The verdict of a run: the first failure by the replicas' own finish times, or the success.

    `exit_code` is that of `jobs submit --stream-logs`. `last_lines` are the end of the log of `replica`, `step` is the
    last step that it reported. `cause` is the exception's own line, or what the program said last, "" if it is unknown;
    `message` ends with it, and it is line `cause_cursor` of the log. `retry` says which retry rule
    matched; `retry_rule` is its number, from 1, where a new run follows by it, if there is one on another machine than
    `replica` had (`other_host`).
    """

    outcome: Outcome
    reason: Reason
    message: str
    replica: str = ""
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()
    step: int | None = None
    cause: str = ""
    cause_cursor: int | None = None
    retry: str = ""
    retry_rule: int | None = None
    other_host: bool = False


class ListedJob(BaseModel):
    """A job of the v1 API in a list for programs, with its owner, its duration in seconds, until now while it runs, its
    parameters, and the newest value of each metric."""

    model_config = ConfigDict(extra="allow")

    owner: str
    duration: int | None = None
    params: dict[str, str] = {}
    metrics: dict[str, float | str] = {}


class JobsPage(BaseModel):
    """A page of a list for programs."""

    jobs: tuple[ListedJob, ...] = ()
    nextPageToken: str = ""  # noqa: N815 - as in the v1 API


class ReplicaView(Wire):
    """`cpu_used` (cores), `memory_used_bytes` and `gpus_used` are the newest sample of a running replica, of `used_at`;
    None without one. `waits` is why its engine has not started it yet, or "". `cpus` and `gpus` are numbers and ids on
    a machine; `vcpus` and the accelerators are amounts. `agent`: where it runs, of a run over several agents; else
    ""."""

    task: str
    state: ReplicaState
    machine_type: str
    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    vcpus: int = 0
    accelerator_type: str = ""
    accelerator_count: int = 0
    memory_bytes: int = 0
    agent: str = ""
    address: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int | None = None
    reason: Reason | None = None
    message: str = ""
    log_lines: int = 0
    log_complete: bool = False
    log_kept: int | None = None
    first_step: int | None = None
    step: int | None = None
    steps: int | None = None
    step_at: datetime | None = None
    durable_step: int | None = None
    durable_at: datetime | None = None
    stall: Stall | None = None
    stacks: str = ""
    metrics: MetricsDigest | None = None
    cpu_used: float | None = None
    memory_used_bytes: int | None = None
    gpus_used: tuple[GpuUsage, ...] = ()
    used_at: datetime | None = None
    waits: str = ""

    @property
    def cores(self) -> int:
        """Number of its CPUs."""
        return self.vcpus or len(self.cpus)

    @property
    def devices(self) -> str:
        """Its devices: their ids on a machine, else `8 x NVIDIA_H100_80GB`; "" without any."""
        if self.gpus or not self.accelerator_count:
            return " ".join(self.gpus)
        return f"{self.accelerator_count} x {self.accelerator_type}"


_PLACES = {
    "docker": "in containers",
    "kubernetes": "in a Kubernetes cluster",
    "process": "as processes",
    "slurm": "as jobs of Slurm",
}


def describe_runtime(runtime: str, reason: str = "") -> str:
    """The place of a run's replicas, and why: `in containers: the job brings its image`; "" if it is not known."""
    if not runtime:
        return ""
    place = _PLACES.get(runtime, f"in {runtime}")
    return f"{place}: {reason}" if reason else place


class RunView(Wire):
    """`runtime` is where its replicas run, "" before that was chosen; `runtime_reason` is why, where there was a
    choice. `restarts` are runs of an evaluator alone, beside this one, in order."""

    run_id: str
    number: int
    state: RunState
    agent: str
    created_at: datetime
    ended_at: datetime | None = None
    activity: str = ""
    verdict: Verdict | None = None
    replicas: tuple[ReplicaView, ...] = ()
    runtime: str = ""
    runtime_reason: str = ""
    restarts: tuple["RunView", ...] = ()

    @property
    def lives(self) -> tuple[tuple[int, ReplicaView], ...]:
        """Its replicas, then those that were started again alone, each with the number of its run."""
        return tuple((run.number, replica) for run in (self, *self.restarts) for replica in run.replicas)

    @property
    def place(self) -> str:
        """The place of its replicas: `in containers`."""
        return describe_runtime(self.runtime)


class EventView(Wire):
    """An event of a job's history. `before` and `after` are set for a move. `actor` caused it: a person, `agent NAME`
    or `trainyard`, the service."""

    number: int
    time: datetime
    kind: str
    message: str
    run: int | None = None
    task: str = ""
    before: str = ""
    after: str = ""
    actor: str = ""


class LostWork(Wire):
    """Work that a job lost by one cause: `steps` that later runs did again, and the `seconds` that its runs took for
    them, each of one GPU, or of one CPU where the job has no accelerators (`unit`)."""

    cause: str
    steps: int
    seconds: float
    unit: Literal["GPU", "CPU"]


class JobDetail(Wire):
    """`job` is the v1 Job; `owner` submitted it ("" if unknown); `waiting` is why a queued job waits, or for which
    silent agents another one does; `exit_code` is set in a final state. `job_dir` is the job's directory: its jobDir,
    else the service's default; "" without one.
    `is_study`: it has trials. `study`, `trial` and `trial_metric`: of a trial the id of its study, its number, and what
    it has reported of the study's metric. `origin` is where it was submitted from, of a trial its study; None where
    that was not recorded. `note` is of people, about it. `metrics`: the most important first, at most 100. `lost` is
    work that its runs did again."""

    job: dict[str, Any]
    job_dir: str = ""
    note: str = ""
    owner: str = ""
    is_study: bool = False
    study: str = ""
    trial: int | None = None
    trial_metric: TrialMetric | None = None
    origin: OriginSummary | None = None
    state: JobState
    waiting: str = ""
    verdict: Verdict | None = None
    exit_code: int | None = None
    metrics: tuple[JobMetric, ...] = ()
    runs: tuple[RunView, ...] = ()
    lost: tuple[LostWork, ...] = ()
    events: tuple[EventView, ...] = ()

    @property
    def last_values(self) -> dict[str, float]:
        """The last value of each metric, the most important first, then those that only other replicas of the latest
        run have reported so far, such as an evaluator's."""
        values = {metric.name: metric.last for metric in self.metrics}
        for replica in self.runs[-1].replicas if self.runs else ():
            for curve in replica.metrics.metrics if replica.metrics is not None else ():
                values.setdefault(curve.name, curve.value)
        return values

    @property
    def without_gpus(self) -> str:
        """A sentence about replicas of the latest run that asked for GPUs and have none; "" without any."""
        latest = self.runs[-1].number if self.runs else None
        messages = (event.message for event in self.events if event.kind == WITHOUT_GPUS and event.run == latest)
        return next(messages, "")


class MountView(Wire):
    """A directory of the site that a replica has at `path`, of a process in the directory of its run: ".../mounts/x".
    `variables` have its path, or that of a directory in it."""

    name: str
    path: str
    read_only: bool
    variables: dict[str, str]


class Explanation(Wire):
    """The environment of one replica, its command, and a shell line that starts it by hand, in a Python environment
    with `packages` (addresses as in packageUris; none for a container image). `runtime` and `runtime_reason` are those
    of its RunView. `mounts` are the directories of the site that it has."""

    task: str
    run: int
    environment: dict[str, str]
    command: tuple[str, ...]
    packages: tuple[str, ...] = ()
    reproduce: str
    runtime: str = ""
    runtime_reason: str = ""
    mounts: tuple[MountView, ...] = ()
