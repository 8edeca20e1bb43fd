"""Views beyond the v1 API (`/trainyard/v1/...`), for the command line and the dashboard."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.message import Wire
from trainyard_protocol.states import JobState, Outcome, Reason, ReplicaState, RunState
from trainyard_protocol.views.origin import OriginSummary
from trainyard_protocol.views.usage import GpuUsage
from trainyard_protocol.wire.agents import Disk, MountOffer, RuntimeOffer, image_runtime, no_room
from trainyard_protocol.wire.logs import Stream
from trainyard_protocol.wire.sync import Stall

WITHOUT_GPUS = "without-gpus"
"""The kind of the event of a run with replicas that asked for GPUs and have none."""

SERVICE_TASK = "service"
"""The task name of the service's own lines in a job's log."""


def number(value: float) -> float | str:
    """A JSON value: "NaN", "Infinity" and "-Infinity" are strings, as in all of Google's APIs."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


Number = Annotated[float, PlainSerializer(number, return_type=float | str, when_used="json")]
"""A float that may not be finite: see `number`."""


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


class CurveDigest(Wire):
    """A metric in short: its newest value, and some points (step, value) over all its steps."""

    name: str
    step: int
    value: Number
    points: tuple[tuple[int, Number], ...] = ()


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


class MetricsDigest(Wire):
    """The metrics of a replica in short: at most 8, the most important first, with 40 points each. `main` is the name
    of the first, or "". `epoch` of `epochs` is as the program counts."""

    main: str = ""
    epoch: int | float | None = None
    epochs: int | float | None = None
    metrics: tuple[CurveDigest, ...] = ()

    def curve(self, name: str = "") -> CurveDigest | None:
        """The curve of this metric, or of the main one; None without one."""
        return next((curve for curve in self.metrics if curve.name == (name or self.main)), None)


class MetricSeries(Wire):
    """One metric of one replica in one run: point i is `values[i]` at `steps[i]`, `times[i]` seconds after the `start`
    of its MetricsView. The steps increase. Of `total` points too many are thinned."""

    name: str
    task: str
    run: int
    steps: tuple[int, ...]
    values: tuple[Number, ...]
    times: tuple[float, ...]
    total: int


class MetricResultView(Wire):
    """A metric of one replica in numbers: its last value with its step and its run, its best value with the step, and
    its extremes. `best` is None where the name does not tell whether lower or higher is better."""

    name: str
    task: str
    run: int
    step: int
    last: Number
    best: float | None = None
    best_step: int | None = None
    lowest: float | None = None
    highest: float | None = None


class MetricsView(Wire):
    """The curves of a job. A step that a later run trained again counts for that run alone. `results` are those of each
    metric and replica, over all points and runs.

    `names` has all its metrics, the most important first; `main` is the first, or "". `step`, `steps`, `epoch` and
    `epochs` are from the newest lines. `epoch_starts`: the first reported step of each epoch. With `version` as
    `after`, an answer has only the series that changed since. `complete` is false while a part of the log is not read
    yet: ask again. `thinned`: some points were removed; `left_out`: there were too many curves.
    """

    metrics: tuple[MetricSeries, ...] = ()
    results: tuple[MetricResultView, ...] = ()
    names: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    main: str = ""
    start: datetime | None = None
    step: int | None = None
    steps: int | None = None
    epoch: int | float | None = None
    epochs: int | float | None = None
    epoch_starts: tuple[tuple[int, float], ...] = ()
    version: str = ""
    complete: bool = True
    thinned: bool = False
    left_out: bool = False


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


class TrialMetric(Wire):
    """The study's metric at the last step for which a trial has reported it."""

    name: str
    step: int
    value: float


class JobMetric(Wire):
    """The last value of a job's metric with its step, and its best one, as the list of jobs has them."""

    name: str
    step: int
    last: Number
    best: float | None = None


class JobDetail(Wire):
    """`job` is the v1 Job; `owner` submitted it ("" if unknown); `waiting` is why a queued job waits, or for which
    silent agents another one does; `exit_code` is set in a final state. `job_dir` is the job's directory: its jobDir,
    else the service's default; "" without one.
    `is_study`: it has trials. `study`, `trial` and `trial_metric`: of a trial the id of its study, its number, and what
    it has reported of the study's metric. `origin` is where it was submitted from, of a trial its study; None where
    that was not recorded. `note` is of people, about it. `metrics`: the most important first, at most 100."""

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


class CandidateView(Wire):
    """An agent as a candidate for a waiting job. `home`: the job would fit if nothing else ran there. `lacks` is ""
    if it fits now."""

    agent: str
    alive: bool
    has: str
    free: str
    home: bool
    lacks: str = ""


class HolderView(Wire):
    """A job that holds resources that another one waits for. `ends_by`: the end of its maxRunningTime. `left_over`: its
    run has ended, but processes of it still run."""

    project: str
    job_id: str
    state: JobState
    priority: int
    agent: str
    holds: str
    running_since: datetime | None = None
    ends_by: datetime | None = None
    left_over: bool = False


class QueuedAheadView(Wire):
    """A job that is ahead of another in the queue."""

    project: str
    job_id: str
    priority: int
    position: int
    needs: str
    waiting: str


class SuggestionView(Wire):
    """A change that would start a waiting job now. `kind`: priority, replicas, machine-type, quota, engine, agent,
    end-job."""

    kind: str
    message: str


class QueueExplanationView(Wire):
    """The explanation of a waiting job; for another job, `summary` alone. `kind` is room, quota, never, apart,
    no-agent, no-engine, no-disk or no-mount. `ahead` and `holders` are jobs that the reader may see; `hidden_holders`
    is the number of the others.

    `changes` has the smallest first. Where no single change is enough, `nothing` is a sentence about what is.
    """

    project: str
    job_id: str
    state: JobState
    priority: int
    summary: str
    kind: str = ""
    needs: str = ""
    position: int = 0
    ahead: tuple[QueuedAheadView, ...] = ()
    agents: tuple[CandidateView, ...] = ()
    holders: tuple[HolderView, ...] = ()
    hidden_holders: int = 0
    changes: tuple[SuggestionView, ...] = ()
    nothing: str = ""


class LogEntry(Wire):
    """A line of a job's log. `cursor` orders all lines of the job; a reader resumes after the last one that it has.

    `number` counts from 0 within one replica of one run. `partial`: the next line continues it; `overwritten`: a state
    of a progress bar, which the next line of its stream replaces; `routine`: a line of the service that the job's state
    or its end repeats.
    """

    cursor: int
    run: int
    task: str
    number: int
    time: str
    stream: Stream
    severity: str
    text: str
    partial: bool = False
    overwritten: bool = False
    routine: bool = False

    @classmethod
    def of_array(cls, elements: Sequence[Any]) -> "LogEntry":
        """The line in an array of the API: its fields up to the text, and the kind of the line. Raises ValueError,
        TypeError."""
        *values, text = elements[:8]
        kind = list(elements[8:])
        named = dict(zip(_BEFORE_TEXT, values, strict=True))
        return cls(**named, text=text, partial=kind == [1], overwritten=kind == [2], routine=kind == [3])


_BEFORE_TEXT = ("cursor", "run", "task", "number", "time", "stream", "severity")


class LogSummary(Wire):
    """Sent when a job's log is complete. For each `run/task`: the number of lines, the agent's digest of them
    (`sync.digest`), and where a quota cut the log off, the number of stored lines (`kept`)."""

    state: JobState
    lines: dict[str, int]
    sha256: dict[str, str] = Field(default_factory=dict)
    kept: dict[str, int] = Field(default_factory=dict)


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


class Me(Wire):
    """The caller. `role` is the one in all projects, else the highest in any, "" without one; `projects` are the roles
    by project, `*` for all."""

    role: str
    name: str
    projects: dict[str, str] = Field(default_factory=dict)


class Staged(Wire):
    """An uploaded package: `uri` goes into packageUris."""

    uri: str
    sha256: str
    size: int


class SignInCode(Wire):
    """A code to sign in with in a browser, once and until `expires_at`, as `name` with that role."""

    code: str
    expires_at: datetime
    name: str
    role: str


class FileEntry(Wire):
    """An entry of a directory. `size` is in bytes. A device, a link out of the job-dir or a name that is not text is
    `other`, and cannot be downloaded. `is_link`: it is a link to a file or directory elsewhere in the job-dir."""

    name: str
    kind: Literal["file", "directory", "other"]
    size: int | None = None
    updated: datetime | None = None
    is_link: bool = False


class FileListing(Wire):
    """One page of a directory below a job's job-dir, sorted by name.

    `next_page_token` is "" on the last page. `model`, only in the listing of the job-dir itself, is the location of the
    model as its program reported it, or `JOBDIR/model` if that exists.
    """

    job_dir: str
    path: str
    entries: tuple[FileEntry, ...] = ()
    next_page_token: str = ""
    model: str = ""
