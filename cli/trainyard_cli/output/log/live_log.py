"""Decisions of the live view of a job: which lines are printed, and the state below them. Pure.

Lines that only report progress become the state; each epoch and each evaluation is one line, of the job's first replica
that reports. Lines that several replicas print within a moment are one line. The service's lines that the state or the
verdict repeats are left out. Everything else is printed as it came.
"""

import json
import math
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from trainyard_cli.output.jobs import study_status
from trainyard_cli.output.log.log_screen import elapsed, parse_rfc3339
from trainyard_cli.output.log.pace import Pace
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.answers.log_views import SERVICE_TASK, LogEntry
from trainyard_protocol.lines.progress import FINAL_EVENTS, HEARTBEAT, START, ProgressEvent, parse
from trainyard_protocol.lines.progress_reader import ProgressReader
from trainyard_protocol.lines.severity import SEVERITIES
from trainyard_protocol.states import FINAL_JOB_STATES, JobState, ReplicaState

HOLD_S = 1.0
"""How long a line waits for the same line of other replicas."""

ALARMS = frozenset(SEVERITIES[SEVERITIES.index("WARNING") :])
"""Severities whose lines are always printed."""

_MAX_HELD = 1000
_LOOKED_AT = 8  # held lines that may be the same
_LONG = 1000  # characters of a line that is the same only if it is equal
_MAX_FIELD = 500  # characters of a field of an event
_MAX_METRICS = 8  # in a line
_MAX_NAMES = 1000  # metrics of a replica
_LIVE_GAP_S = 0.5  # a line that comes so long after the one before was printed just now
# Events that need no line, also without a step.
_QUIET = frozenset({START, HEARTBEAT, "evaluating", *FINAL_EVENTS})
_EVALUATION_EVENTS = frozenset({"eval", "evaluation", "validation"})
_EVALUATION_PREFIXES = ("held_out_", "val_", "validation_", "eval_", "test_")
_VARIANTS = ("train_", *_EVALUATION_PREFIXES)
_RATE = re.compile(r"per_sec|per_s$|/s$|seconds")
_DIGITS = re.compile(r"\d+")
_ROLES = ("master", "chief", "worker", "ps", "evaluator")


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of the service, of a replica, or of several that print the same. `who` names them; "" where all of them
    do, `replicas` in number."""

    time: str
    tasks: tuple[str, ...]
    who: str
    severity: str
    text: str
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class MetricsLine:
    """The metrics of an epoch or an evaluation. `who` is "" for the replica that counts for the job."""

    time: str
    tasks: tuple[str, ...]
    who: str
    heading: str
    values: tuple[str, ...]


ShownLine = TextLine | MetricsLine


@dataclass(frozen=True, slots=True)
class LiveState:
    """Current state of a job. `words` are there while no step is known; `done` is the share of the steps.

    `silent_s`: the time without a step, where that is longer than usual."""

    state: JobState
    words: tuple[str, ...] = ()
    elapsed: str = ""
    step: int | None = None
    steps: int | None = None
    done: float | None = None
    epoch: str = ""
    metric: str = ""
    steps_per_s: float | None = None
    left_s: float | None = None
    silent_s: float | None = None


@dataclass(slots=True)
class _Progress:
    """Progress of one replica in one run. `fresh`: there are metrics that no line has shown."""

    reader: ProgressReader = field(default_factory=ProgressReader)
    pace: Pace = field(default_factory=Pace)
    steps: int | None = None
    epoch: float | None = None
    epochs: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    time: str = ""
    fresh: bool = False
    evaluation: tuple[object, ...] | None = None
    shown: str = ""  # the heading of the last line
    finished: bool = False

    @property
    def reports(self) -> bool:
        return self.pace.step is not None or self.epoch is not None

    def add(self, event: ProgressEvent, time: str) -> None:
        if event.step is not None and event.is_position:
            self.pace.add(event.step, parse_rfc3339(time))
        if event.steps is not None:
            self.steps = event.steps
        if event.epoch is not None:
            self.epoch = event.epoch
        if event.epochs is not None:
            self.epochs = event.epochs
        if event.metrics:
            self.metrics.update(event.metrics)
            self.fresh, self.time = True, time
            if len(self.names) < _MAX_NAMES:
                self.names.update(event.metrics)
        self.finished = event.event in FINAL_EVENTS

    @property
    def heading(self) -> str:
        if self.epoch is not None:
            return f"epoch {_of(self.epoch, self.epochs)}"
        return f"step {_of(self.pace.step, self.steps)}" if self.pace.step is not None else ""


class LiveLog:
    """The view of one job's log: `add` and `status` accept what the server sends, `due` returns the lines to print."""

    def __init__(self) -> None:
        self._detail: JobDetail | None = None
        self._runs: dict[int, dict[str, _Progress]] = {}
        self._gangs: dict[int, dict[str, int]] = {}  # the rank of each replica of each run
        self._held = _HeldLines(self._gangs)
        self._previous: datetime | None = None
        self._skew: timedelta | None = None  # of this machine's clock from the agents'

    def status(self, detail: JobDetail) -> None:
        self._detail = detail
        for run in (attempt for gang in detail.runs for attempt in (gang, *gang.restarts)):
            self._gangs[run.number] = {replica.task: rank for rank, replica in enumerate(run.replicas)}

    def add(self, entry: LogEntry, now: datetime) -> None:
        """Add a line that arrived at `now`."""
        self._measure_skew(entry, now)
        if entry.task != SERVICE_TASK and not entry.partial and self._reports(entry, now):
            return
        if entry.routine:
            return
        line = TextLine(entry.time, (entry.task,), "", entry.severity, event_text(entry.text))
        self._held.add(line, entry.run, entry.task, now)

    def due(self, now: datetime) -> list[ShownLine]:
        """The lines to print now."""
        return self._named(self._held.release(now - timedelta(seconds=HOLD_S)))

    def rest(self, now: datetime) -> list[ShownLine]:
        """The remaining lines, at the end of the view; for a job that has ended also its last metrics."""
        if self._detail is not None and self._detail.state in FINAL_JOB_STATES and self._runs:
            run = max(self._runs)
            for task in sorted(self._runs[run], key=_rank):
                self._print_metrics(run, task, now)
        return self._named(self._held.release(None))

    def state(self, now: datetime) -> LiveState | None:
        """The current state of the job; None before the first status."""
        detail = self._detail
        if detail is None:
            return None
        since = detail.job.get("startTime") or detail.job.get("createTime")
        state = LiveState(detail.state, tuple(_words(detail)), elapsed(since, now) if since else "")
        newest = max([*self._runs, *(run.number for run in detail.runs)], default=0)
        first = self._runs.get(newest, {}).get(self._first_reporting(newest))
        if detail.state is not JobState.RUNNING or first is None:
            return state
        step, steps = first.pace.step, first.steps
        complete = first.finished or (step is not None and steps is not None and step >= steps)
        return replace(
            state,
            words=(),
            step=step,
            steps=steps,
            done=min(1.0, step / steps) if step is not None and steps else None,
            epoch=_of(first.epoch, first.epochs) if first.epoch is not None else "",
            metric=_main_metric(first.metrics),
            steps_per_s=first.pace.steps_per_s,
            left_s=None if complete else first.pace.left_s(steps),
            silent_s=None if complete else first.pace.silent_s(now - (self._skew or timedelta())),
        )

    def _measure_skew(self, entry: LogEntry, now: datetime) -> None:
        """Lines that were there before come at once, and long after they were printed: they say nothing."""
        if self._previous is not None and (now - self._previous).total_seconds() >= _LIVE_GAP_S:
            skew = now - parse_rfc3339(entry.time)
            self._skew = skew if self._skew is None else min(self._skew, skew)
        self._previous = now

    def _reports(self, entry: LogEntry, now: datetime) -> bool:
        """Read the progress in a line; whether it is nothing else, and need not be printed."""
        replicas = self._runs.setdefault(entry.run, {})
        if entry.task not in replicas:
            replicas[entry.task] = _Progress()
        event = replicas[entry.task].reader.read(entry.text)
        if event is None or (event.step is None and event.epoch is None and event.event not in _QUIET):
            return False
        self._add_event(entry, event, replicas[entry.task], now)
        is_result = event.is_guess and event.epoch is None  # a sentence for people: `Test accuracy: 0.93`
        return entry.severity not in ALARMS and not is_result

    def _add_event(self, entry: LogEntry, event: ProgressEvent, progress: _Progress, now: datetime) -> None:
        evaluation = _evaluation(event)
        is_evaluation = evaluation is not None and evaluation != progress.evaluation
        if not is_evaluation and _is_next(progress.epoch, event.epoch):
            self._print_metrics(entry.run, entry.task, now)
            progress.metrics.clear()
        progress.add(event, entry.time)
        if is_evaluation:
            progress.evaluation = evaluation
            progress.shown = ""
            self._print_metrics(entry.run, entry.task, now)
            for name in event.metrics:
                if name.startswith(_EVALUATION_PREFIXES):
                    del progress.metrics[name]
        elif progress.finished:
            self._print_metrics(entry.run, entry.task, now)

    def _print_metrics(self, run: int, task: str, now: datetime) -> None:
        """Hold a line with the metrics of a replica, if they are new, the epoch has none yet, and no other replica's
        count more."""
        progress = self._runs[run][task]
        values = tuple(metric_groups(progress.metrics))
        if not (progress.fresh and values) or progress.heading == progress.shown:
            return
        progress.fresh, progress.shown = False, progress.heading
        first = self._first_reporting(run)
        if task != first and progress.names <= self._runs[run][first].names:
            return
        line = MetricsLine(progress.time, (task,), "" if task == first else task, progress.heading, values)
        self._held.add(line, run, task, now)

    def _first_reporting(self, run: int) -> str:
        """The replica whose progress counts for the job: the primary, or else the first that reports any."""
        reporting = (task for task, progress in self._runs.get(run, {}).items() if progress.reports)
        return min(reporting, key=_rank, default="")

    def _named(self, released: Iterable["_Held"]) -> list[ShownLine]:
        lines: list[ShownLine] = []
        for held in released:
            line, tasks = held.line, tuple(held.tasks)
            if isinstance(line, MetricsLine):
                lines.append(replace(line, who=self._who(held.run, tasks) if line.who else ""))
            else:
                who = self._who(held.run, tasks)
                lines.append(replace(line, tasks=tasks, who=who, text=held.text, replicas=len(tasks)))
        return lines

    def _who(self, run: int, tasks: tuple[str, ...]) -> str:
        if tasks == (SERVICE_TASK,):
            return SERVICE_TASK
        gang = len(self._gangs.get(run, {}))
        if len(tasks) == gang:
            who = ""
        elif len(tasks) > 2:
            who = f"{len(tasks)} of {gang} replicas"
        else:
            who = ", ".join(short_task(task) for task in sorted(tasks, key=_rank))
        return f"{who}#{run}" if run > 1 else who


@dataclass(slots=True)
class _Held:
    """A line that waits. `numbers` in its text, and the places of those that are each replica's own rank."""

    line: ShownLine
    run: int
    tasks: list[str]
    since: datetime
    key: tuple[int, str, str] | None = None
    numbers: list[str] = field(default_factory=list)
    ranks: dict[int, list[int]] = field(default_factory=dict)

    def joins(self, task: str, numbers: list[str], gang: Mapping[str, int]) -> bool:
        """Add a replica whose line is the same, but perhaps for its own rank. False if it is not the same."""
        differing = [place for place, number in enumerate(numbers) if number != self.numbers[place]]
        if len(self.tasks) == 1:
            places = differing
            if any(self.numbers[place] != str(gang.get(self.tasks[0])) for place in places):
                return False
        else:
            places = list(self.ranks)
        rank = gang.get(task, -1)
        if not set(differing) <= set(places) or any(numbers[place] != str(rank) for place in places):
            return False
        for place in places:
            self.ranks.setdefault(place, [int(self.numbers[place])]).append(rank)
        self.tasks.append(task)
        return True

    @property
    def text(self) -> str:
        assert isinstance(self.line, TextLine)
        places = iter(range(len(self.numbers)))

        def number(match: "re.Match[str]") -> str:
            ranks = sorted(self.ranks.get(next(places), ()))
            return (",".join(map(str, ranks)) if len(ranks) < 4 else f"{ranks[0]}-{ranks[-1]}") or match[0]

        return _DIGITS.sub(number, self.line.text) if self.ranks else self.line.text


class _HeldLines:
    """Lines that wait for the same lines of other replicas. The lines of each replica keep their order."""

    def __init__(self, gangs: Mapping[int, Mapping[str, int]]) -> None:
        self._gangs = gangs
        self._lines: deque[_Held] = deque()
        self._first = 0  # number of the first line of `_lines`
        self._numbers: dict[tuple[int, str, str], list[int]] = {}  # by run, severity and shape, ascending
        self._last: dict[str, int] = {}  # number of the last line of each replica

    def add(self, line: ShownLine, run: int, task: str, now: datetime) -> None:
        number = self._first + len(self._lines)
        held = _Held(line, run, [task], now)
        gang = self._gangs.get(run, {})
        if isinstance(line, TextLine) and task != SERVICE_TASK and len(gang) > 1:
            shape = line.text
            if line.severity not in ALARMS and len(shape) <= _LONG:
                shape, held.numbers = _DIGITS.sub("#", shape), _DIGITS.findall(shape)
            held.key = (run, line.severity, shape)
            same = self._numbers.setdefault(held.key, [])
            start = bisect_right(same, self._last.get(task, -1))
            for candidate in same[start : start + _LOOKED_AT]:
                if self._lines[candidate - self._first].joins(task, held.numbers, gang):
                    self._last[task] = candidate
                    return
            same.append(number)
        self._last[task] = number
        self._lines.append(held)

    def release(self, before: datetime | None) -> list[_Held]:
        """Remove the lines from the front that are complete, or held since `before`; without it all."""
        released = []
        while self._lines and (before is None or self._is_due(self._lines[0], before)):
            held = self._lines.popleft()
            self._first += 1
            if held.key is not None:
                del self._numbers[held.key][0]
                if not self._numbers[held.key]:
                    del self._numbers[held.key]
            released.append(held)
        return released

    def _is_due(self, held: _Held, before: datetime) -> bool:
        complete = held.key is None or len(held.tasks) >= len(self._gangs[held.run])
        return complete or held.since <= before or len(self._lines) > _MAX_HELD


def event_text(text: str) -> str:
    """An event in words: `saved  model /out/model`. Any other line as it is."""
    event = parse(text)
    if event is None:
        return text
    fields = {name: value for name, value in json.loads(text).items() if name != "event"}
    if not all(isinstance(value, str | int | float) and len(str(value)) < _MAX_FIELD for value in fields.values()):
        return text
    return "  ".join([event.event, *(f"{name} {value}" for name, value in fields.items())])


def metric_groups(metrics: Mapping[str, float]) -> list[str]:
    """Metrics with those that vary them, the loss first: `loss 0.312, held_out 0.281`, `accuracy 0.912`. Rates are
    left out."""
    names = sorted((name for name in metrics if not _RATE.search(name)), key=_importance)[:_MAX_METRICS]
    groups: dict[str, list[str]] = {}
    for name in names:
        group = groups.setdefault(_base(name), [])
        label = name if not group else name.removesuffix(_base(name)).rstrip("_") or name
        group.append(metric_text(label, metrics[name]))
    return [", ".join(group) for group in groups.values()]


def metric_text(name: str, value: float) -> str:
    return f"{name} {number_text(value)}"


def number_text(value: float) -> str:
    """About three digits, with the same width for neighbouring values: `0.312`, `12.3`, `1,234`, `8.1e-05`."""
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if 1e-3 <= size < 1e7:
        return f"{value:.3f}" if size < 10 else f"{value:.1f}" if size < 1000 else f"{value:,.0f}"
    return f"{value:.3g}"


def short_task(task: str) -> str:
    """`worker-0` of `worker-replica-0`; `master` of the only master."""
    role, _, index = task.partition("-replica-")
    return f"{role}-{index}" if index and (role in ("worker", "ps") or index != "0") else role


def _words(detail: JobDetail) -> list[str]:
    """Activity of a job that has reported no step yet."""
    position = detail.job.get("jobPosition")
    words = [f"#{position} in the queue"] if position else []
    words += [detail.waiting] if detail.waiting else []
    words += study_status.words(detail.job)
    if detail.runs and detail.state not in (JobState.QUEUED, *FINAL_JOB_STATES):
        run = detail.runs[-1]
        running = sum(replica.state is ReplicaState.RUNNING for replica in run.replicas)
        words.append(run.activity or f"{running} of {len(run.replicas)} replicas running")
        if run.number > 1:
            words.append(f"run {run.number}")
    return words


def _main_metric(metrics: Mapping[str, float]) -> str:
    name = min(metrics, key=_importance, default=None)
    return metric_text(name, metrics[name]) if name is not None else ""


def _importance(name: str) -> int:
    """The loss, other losses, then the rest as given; rates last."""
    if name in ("loss", "train_loss"):
        return 0
    return 3 if _RATE.search(name) else 1 if "loss" in name.casefold() else 2


def _base(name: str) -> str:
    prefix = next((prefix for prefix in _VARIANTS if name.startswith(prefix)), "")
    return name.removeprefix(prefix)


def _evaluation(event: ProgressEvent) -> tuple[object, ...] | None:
    """Identity of an evaluation, which a program may repeat at each step. None without one."""
    if not event.is_position:  # the end of an epoch; or another bar, which changes until the epoch ends
        return (event.epoch, event.step) if event.epoch is not None and event.metrics else None
    if event.event in _EVALUATION_EVENTS and event.metrics:
        return event.epoch, event.step
    values = tuple(item for item in event.metrics.items() if item[0].startswith(_EVALUATION_PREFIXES))
    return (event.epoch, *values) if values else None


def _is_next(before: float | None, epoch: float | None) -> bool:
    return before is not None and epoch is not None and int(epoch) != int(before)


def _of(done: float, total: float | None) -> str:
    return f"{_plain(done)}/{_plain(total)}" if total is not None else _plain(done)


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.4g}"


def _rank(task: str) -> tuple[int, str, int]:
    """The order of a gang: the primary first."""
    role, _, index = task.partition("-replica-")
    position = _ROLES.index(role) if role in _ROLES else len(_ROLES)
    return position, role, int(index) if index.isdecimal() and len(index) < 10 else 0
