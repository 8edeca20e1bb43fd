"""What the server tells people beyond the v1 API (`/trainyard/v1/...`): the command line and the dashboard read it."""

import json
import math
import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, PlainSerializer

from trainyard_protocol.states import JobState, Outcome, Reason, ReplicaState, RunState
from trainyard_protocol.sync import Capacity, Stall, Stream, Wire
from trainyard_protocol.usage import GpuUsage

SERVICE_TASK = "service"
"""The task name of the service's own lines in a job's log."""

_LEVEL = re.compile(r"(?:\S+ ){0,3}?\[?(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\b")
_ABSL = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\d")
_ABSL_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_LEVELS = frozenset({"DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL"})


def number(value: float) -> float | str:
    """As JSON has it: what is no finite number is a string, "NaN", "Infinity" or "-Infinity", as in all of Google's
    APIs."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


Number = Annotated[float, PlainSerializer(number, return_type=float | str, when_used="json")]
"""A float that may be none: see `number`."""


class Verdict(Wire):
    """Why a run ended as it did: the first failure by the replicas' own finish times.

    `exit_code` is what `jobs submit --stream-logs` exits with; `last_lines` end the log of `replica`, and `step` is
    the last that its program reported.
    """

    outcome: Outcome
    reason: Reason
    message: str
    replica: str = ""
    exit_code: int | None = None
    last_lines: tuple[str, ...] = ()
    step: int | None = None


class CurveDigest(Wire):
    """One metric in short: its newest value, and some points (step, value) spread over all of its steps."""

    name: str
    step: int
    value: Number
    points: tuple[tuple[int, Number], ...] = ()


class MetricsDigest(Wire):
    """What a replica's program has measured of itself, in short (`digests.py` of the server): 8 metrics at most, what
    matters most first, 40 points of each. `main` is the one to show where there is room for one, or "". `epoch`
    counts as the program does, of `epochs`."""

    main: str = ""
    epoch: int | float | None = None
    epochs: int | float | None = None
    metrics: tuple[CurveDigest, ...] = ()

    def curve(self, name: str = "") -> CurveDigest | None:
        """Of this metric, or of the main one; None where there is none."""
        return next((one for one in self.metrics if one.name == (name or self.main)), None)


class MetricSeries(Wire):
    """One metric of one replica in one run: point i is `values[i]` at `steps[i]`, `times[i]` seconds after the `start`
    of its MetricsView. Its steps rise. Of `total` points those that show its course, when there were too many."""

    name: str
    task: str
    run: int
    steps: tuple[int, ...]
    values: tuple[Number, ...]
    times: tuple[float, ...]
    total: int


class MetricsView(Wire):
    """The curves of a job. A step that a later run has trained again is that run's alone.

    `names` are those of all its metrics, what matters most first; `main` is the first of them, or "". `step`, `steps`,
    `epoch`, `epochs`: as the newest lines say. `epoch_starts`: the first step that was reported in an epoch.
    `version`: given as `after`, only those series come that have changed since. `complete`: false while there is more
    in the log that has not been read: ask again. `thinned`: there were so many points that only those are kept that
    show their course; `left_out`: there were too many curves.
    """

    metrics: tuple[MetricSeries, ...] = ()
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
    """`cpu_used` (cores), `memory_used_bytes` and `gpus_used` are what was measured last, at `used_at`, of a replica
    that runs; None where nothing was."""

    task: str
    state: ReplicaState
    machine_type: str
    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    memory_bytes: int = 0
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


class RunView(Wire):
    run_id: str
    number: int
    state: RunState
    agent: str
    created_at: datetime
    ended_at: datetime | None = None
    activity: str = ""
    verdict: Verdict | None = None
    replicas: tuple[ReplicaView, ...] = ()


class EventView(Wire):
    """One line of a job's history. `kind` names what happened; `before` and `after` are set for a move."""

    number: int
    time: datetime
    kind: str
    message: str
    run: int | None = None
    task: str = ""
    before: str = ""
    after: str = ""


class JobDetail(Wire):
    """`job` is the v1 Job; `owner` is who submitted it ("" where nobody knows); `waiting` says what a queued job waits
    for; `exit_code` mirrors a final state."""

    job: dict[str, Any]
    owner: str = ""
    state: JobState
    waiting: str = ""
    verdict: Verdict | None = None
    exit_code: int | None = None
    runs: tuple[RunView, ...] = ()
    events: tuple[EventView, ...] = ()


class JobFound(Wire):
    project: str
    job_id: str
    state: JobState


class JobsFound(Wire):
    """Jobs that somebody looks for by a part of their names, the newest first."""

    jobs: tuple[JobFound, ...] = ()


class Explanation(Wire):
    """What one replica sees: its variables, its command, and the line that reproduces it by hand, in a Python
    that has `packages` (addresses as in packageUris; none for a container image)."""

    task: str
    run: int
    environment: dict[str, str]
    command: tuple[str, ...]
    packages: tuple[str, ...] = ()
    reproduce: str


class FitView(Wire):
    """One agent as a place for a waiting job. `home`: it could hold it if nothing else ran there.
    `lacks` is "" where it fits just now."""

    agent: str
    alive: bool
    has: str
    free: str
    home: bool
    lacks: str = ""


class HolderView(Wire):
    """A job that holds what another waits for. `ends_by`: when its maxRunningTime is over, which is the only
    end that is known; `left_over`: its run has ended, and what it started still lives."""

    project: str
    job_id: str
    state: JobState
    priority: int
    agent: str
    holds: str
    running_since: datetime | None = None
    ends_by: datetime | None = None
    left_over: bool = False


class AheadView(Wire):
    """A job that stands before another in the queue."""

    project: str
    job_id: str
    priority: int
    position: int
    needs: str
    waiting: str


class ChangeView(Wire):
    """One thing that would start a waiting job now. `kind`: priority, replicas, machine-type, quota, agent, end-job."""

    kind: str
    message: str


class WhyView(Wire):
    """Why a job waits, or in `summary` alone what it does instead. `kind` is room, quota, never or no-agent.

    `changes` has the smallest first; `nothing` says what it would take where no single change is enough.
    """

    project: str
    job_id: str
    state: JobState
    priority: int
    summary: str
    kind: str = ""
    needs: str = ""
    position: int = 0
    ahead: tuple[AheadView, ...] = ()
    agents: tuple[FitView, ...] = ()
    holders: tuple[HolderView, ...] = ()
    changes: tuple[ChangeView, ...] = ()
    nothing: str = ""


class LogEntry(Wire):
    """One line of a job's log. `cursor` orders all lines of the job; a reader resumes after the last it has.

    `number` counts from 0 within one replica of one run.
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


class LogSummary(Wire):
    """Sent when a job's log is complete: for each `run/task` how many lines there are, the digest
    (`sync.digest`) that its agent computed of them, and where a quota cut it off, how many are kept."""

    state: JobState
    lines: dict[str, int]
    sha256: dict[str, str] = Field(default_factory=dict)
    kept: dict[str, int] = Field(default_factory=dict)


class AgentView(Wire):
    """`cpus_given`, `memory_given_bytes` and `gpus_given` are what its live runs hold. `cpu_used` (cores),
    `memory_used_bytes` and `gpus_used` are what was measured last of the replicas that run there, all together."""

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
    cpu_used: float = 0.0
    memory_used_bytes: int = 0
    gpus_used: tuple[GpuUsage, ...] = ()


class ServerStatus(Wire):
    version: str
    agents: tuple[AgentView, ...]
    jobs: dict[JobState, int]


class Me(Wire):
    """Whose token came with the request: its role and its name."""

    role: str
    name: str


class Staged(Wire):
    """An uploaded package: `uri` goes into packageUris."""

    uri: str
    sha256: str
    size: int


SEVERITIES = ("DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL")
"""From the least to the most."""


def severity(stream: Stream, text: str) -> str:
    """What the line says of itself (a JSON `severity`, a logging level, absl's letter), else its stream's:
    INFO for stdout and ERROR for stderr, as the real service had it."""
    if text.startswith("{"):
        try:
            said = json.loads(text)
        except ValueError:
            said = {}
        level = str(said.get("severity", "")).upper() if isinstance(said, dict) else ""
        if level in _LEVELS:
            return level
    elif match := _LEVEL.match(text):
        return "CRITICAL" if match[1] == "FATAL" else match[1]
    elif match := _ABSL.match(text):
        return _ABSL_LEVELS[match[1]]
    return "INFO" if stream == "stdout" else "ERROR"


class SignInCode(Wire):
    """What a browser may sign in with, once and until `expires_at`, as `name` with that role."""

    code: str
    expires_at: datetime
    name: str
    role: str
