"""Table of the jobs that have not ended, over time. Pure.

What a job does is in the server's list; its speed follows from the steps of one list after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainyard_cli.output.jobs.formats import count, table
from trainyard_cli.output.log.live_log import metric_text
from trainyard_cli.output.log.log_screen import local_time
from trainyard_cli.output.log.pace import Pace, left_text, rate_text, silent_text
from trainyard_cli.output.log.terminal_screen import without_colours
from trainyard_protocol.job.machines import GIGABYTE
from trainyard_protocol.states import JobState
from trainyard_protocol.views.views import ActiveJobsView, ActiveJobView

_HEADERS = ("JOB", "STATE", "STEP", "METRIC", "SPEED", "LEFT", "CPU", "MEMORY GB", "AGENT", "DOES")
_NARROW = 6  # columns of a narrow table; the others are a second row
_LEAST_NAME = 12


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job as the table shows it."""

    name: str
    state: JobState
    step: str = ""
    metric: str = ""
    speed: str = ""
    left: str = ""
    cpu: str = ""
    memory: str = ""
    agent: str = ""
    does: str = ""

    @property
    def cells(self) -> list[str]:
        return [
            self.name, str(self.state), self.step, self.metric, self.speed, self.left, self.cpu, self.memory,
            self.agent, self.does,
        ]  # fmt: skip

    @property
    def second_row(self) -> str:
        """The cells that a narrow table has no column for."""
        named = (
            ("", self.does),
            ("CPU ", self.cpu),
            ("memory ", self.memory and f"{self.memory} GB"),
            ("on ", self.agent),
        )
        return "  ".join(name + cell for name, cell in named if cell)


class ActiveJobs:
    """The lines of one list after the other. `project` is the reader's own; jobs of others are named with theirs."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._paces: dict[tuple[str, str, int | None], Pace] = {}

    def lines(self, view: ActiveJobsView) -> list[JobLine]:
        paces = {(job.project, job.job_id, job.run): Pace() for job in view.jobs}
        self._paces = {key: self._paces.get(key, pace) for key, pace in paces.items()}
        return [self._line(job, view) for job in view.jobs]

    def _line(self, job: ActiveJobView, view: ActiveJobsView) -> JobLine:
        pace = self._paces[job.project, job.job_id, job.run]
        if pace.step is None and job.first_step is not None and job.started_at is not None:
            pace.add(job.first_step, job.started_at)
        if job.step is not None and job.step_at is not None:
            pace.add(job.step, job.step_at)
        runs = job.state is JobState.RUNNING
        complete = job.step is not None and job.steps is not None and job.step >= job.steps
        left = pace.left_s(job.steps) if runs else None
        silent = pace.silent_s(view.now) if runs and not complete else None
        return JobLine(
            name=job.job_id if job.project == self._project else f"{job.project}/{job.job_id}",
            state=job.state,
            step=_step(job),
            metric=without_colours(metric_text(job.metric, job.value)) if job.metric and job.value is not None else "",
            speed=rate_text(pace.steps_per_s) if runs and pace.steps_per_s else "",
            left=left_text(left).removesuffix(" left") if left is not None and silent is None else "",
            cpu=_used(job.cpu_used, job.cpus),
            memory=_used(
                None if job.memory_used_bytes is None else job.memory_used_bytes / GIGABYTE, job.memory_bytes / GIGABYTE
            ),
            agent=without_colours(job.agent),
            does=without_colours("; ".join(_activities(job, silent))),
        )


def headline(view: ActiveJobsView) -> str:
    """`12:00:01  2 running, 1 queued  1 agent`."""
    order = (JobState.RUNNING, JobState.PREPARING, JobState.CANCELLING, JobState.QUEUED)
    counts = [f"{view.counts[state]} {state.lower()}" for state in order if view.counts.get(state)]
    agents = count(view.agents, "agent") if view.agents else "no agent is alive"
    return "  ".join([local_time(view.now.isoformat(), short=True), ", ".join(counts) or "no active job", agents])


def wide_rows(lines: Sequence[JobLine]) -> list[str]:
    """One row for each job, as wide as it has to be. Columns that all jobs leave empty are left out."""
    cells = [line.cells for line in lines]
    columns = [number for number in range(len(_HEADERS)) if any(row[number] for row in cells)]
    rows = [[row[number] for number in columns] for row in cells]
    return table([_HEADERS[number] for number in columns], rows).splitlines() if rows else []


def rows(lines: Sequence[JobLine], width: int) -> list[str]:
    """The table, where it fits; else two rows for each job."""
    wide = wide_rows(lines)
    if max(map(len, wide), default=0) <= width:
        return wide
    cells = [line.cells[:_NARROW] for line in lines]
    others = max(map(len, table(_HEADERS[1:_NARROW], [row[1:] for row in cells]).splitlines()))
    room = max(_LEAST_NAME, width - others - 2)
    shown = table(_HEADERS[:_NARROW], [[_shortened(row[0], room), *row[1:]] for row in cells]).splitlines()
    result = shown[:1]
    for row, line in zip(shown[1:], lines, strict=True):
        result.append(row[:width])
        if line.second_row:
            result.append(_cut(f"  {line.second_row}", width))
    return result


def page(view: ActiveJobsView, lines: Sequence[JobLine], width: int, height: int, notice: str = "") -> list[str]:
    """The rows of a screen: the headline, a notice, the table, and that there is no room for more."""
    table_rows = rows(lines, width)
    shown = [_cut(f"{headline(view)}  q quits", width), _cut(without_colours(notice), width), *table_rows]
    if len(shown) <= height:
        return shown
    return [*shown[: height - 1], _cut("... and more: a higher terminal, or --once, shows all", width)]


def _activities(job: ActiveJobView, silent_s: float | None) -> list[str]:
    texts = [f"run {job.run}"] if job.run is not None and job.run > 1 else []
    if job.state is JobState.QUEUED:
        place = f"#{job.position}: " if job.position else ""
        return [*texts, f"{place}{job.waiting or 'not considered yet'}"]
    if job.attention in ("stalled", "silent"):
        texts.append({"stalled": "stalled", "silent": "its agent is silent"}[job.attention])
    elif silent_s is not None:
        texts.append(silent_text(silent_s))
    if job.activity:
        texts.append(job.activity)
    elif job.step is None or job.running < job.replicas:
        texts.append(f"{job.running} of {job.replicas} replicas running")
    return texts


def _step(job: ActiveJobView) -> str:
    if job.step is not None:
        return f"{job.step}/{job.steps}" if job.steps is not None else str(job.step)
    if job.epoch is None:
        return ""
    return f"epoch {job.epoch:g}" + (f"/{job.epochs:g}" if job.epochs is not None else "")


def _used(used: float | None, given: float) -> str:
    if used is None:
        return ""
    return f"{used:.1f}/{given:.3g}" if given else f"{used:.1f}"


def _shortened(name: str, width: int) -> str:
    """The name, with less of its middle."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
