"""The table of `jobs list`: whole in a pipe, as wide as the terminal on one. It loads no models."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

import click

from trainyard_cli.output.jobs import formats
from trainyard_cli.output.log.pace import Pace, left_text
from trainyard_cli.output.text.safe import printable
from trainyard_protocol.states import FINAL_JOB_STATES, JobState

if TYPE_CHECKING:
    from trainyard_cli.v1_client import V1Client

Job = Mapping[str, Any]

_EXITED = re.compile(
    r"The replica (\w+ \d+) (?:exited with a non-zero status of (\d+)|was killed by signal (\d+(?: \(\w+\))?))\. ?"
)
_COLOURS: Mapping[str, str] = {JobState.SUCCEEDED: "green", JobState.FAILED: "red", JobState.CANCELLED: "yellow"}
_ACTIVE_COLOUR = "cyan"
_LEAST_LAST = 20  # cells of the last column, for which the names are shortened
_LEAST_NAME = 12
_GAP = 2
_ATTENTION = {"stalled": "stalled", "silent": "its agent is silent"}


def plain(jobs: Sequence[Job], *, wide: bool = False) -> str:
    """`JOB_ID STATUS CREATED`, OWNER where the jobs have several, and CAUSE where one has failed, each value whole.
    `wide`: also owner, duration, main metric and labels."""
    columns = _first_columns(jobs, [_time(job, "%Y-%m-%dT%H:%M:%S") for job in jobs], wide=wide)
    causes = [_cause(job) for job in jobs]
    columns |= {"CAUSE": causes} if any(causes) else {}
    return formats.table(list(columns), _rows(columns))


def fitted(jobs: Sequence[Job], activities: Mapping[str, Job], width: int, now: datetime) -> str:
    """The same in at most `width` columns, with the states in colour and what active jobs do (`activities`, by name, as
    the server lists them): the last column is cropped, and names only where it would vanish."""
    created = [_time(job, "%m-%d %H:%M" if _is_of_year(job, now) else "%Y-%m-%d") for job in jobs]
    columns = _first_columns(jobs, created, wide=False)
    widths = [max(map(cell_len, (header, *texts))) for header, texts in columns.items()]
    least = min(widths[0], _LEAST_NAME)
    room = width - sum(widths[1:]) - _GAP * len(widths)  # of the name and the last column
    causes = [_brief(_cause(job)) for job in jobs]
    doing = [_activity(activities[job["jobId"]]) if job["jobId"] in activities else "" for job in jobs]
    if (any(causes) or any(doing)) and room >= least + _LEAST_LAST:
        header = "CAUSE" if not any(doing) else "PROGRESS" if not any(causes) else "DETAILS"
        columns[header] = [cause or text for cause, text in zip(causes, doing, strict=True)]
        widths.append(max(_LEAST_LAST, room - widths[0]))
        room -= widths[-1]
    else:
        room += _GAP
    widths[0] = min(widths[0], max(least, room))
    lines = [_line(list(columns), widths, "")]
    lines += [_line(row, widths, job["state"]) for job, row in zip(jobs, _rows(columns), strict=True)]
    return "\n".join(lines)


def activities(client: "V1Client", jobs: Sequence[Job]) -> dict[str, Job]:
    """Work of the active ones of these jobs, by name. A request, where there are any."""
    if all(job["state"] in FINAL_JOB_STATES for job in jobs):
        return {}
    return {str(job["job_id"]): job for job in client.activities() if job["project"] == client.project}


def _first_columns(jobs: Sequence[Job], created: list[str], *, wide: bool) -> dict[str, list[str]]:
    columns = {"JOB_ID": [job["jobId"] for job in jobs], "STATUS": [job["state"] for job in jobs], "CREATED": created}
    owners = [str(job.get("owner", "")) for job in jobs]
    if wide or len(set(owners)) > 1:
        columns["OWNER"] = owners
    if wide:
        columns["DURATION"] = [_duration(job.get("duration")) for job in jobs]
        columns["METRIC"] = [_metric(job) for job in jobs]
        columns["LABELS"] = [",".join(f"{key}={value}" for key, value in job.get("labels", {}).items()) for job in jobs]
    return columns


def _rows(columns: Mapping[str, list[str]]) -> list[list[str]]:
    return [list(row) for row in zip(*columns.values(), strict=True)]


def _line(row: Sequence[str], widths: Sequence[int], state: str) -> str:
    """A row with its cells cropped and padded; the second cell has the colour of the state."""
    name, *others = row
    cells = [_without_middle(name, widths[0]), *map(_cropped, others, widths[1:])]
    padded = [cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
    padded[-1] = padded[-1].rstrip()
    if state:
        padded[1] = click.style(padded[1], fg=_COLOURS.get(state, _ACTIVE_COLOUR))
    return (" " * _GAP).join(padded).rstrip()


def cell_len(text: str) -> int:
    """The columns that a text has on a terminal."""
    return len(text) + (0 if text.isascii() else sum(east_asian_width(letter) in "WF" for letter in text))


def _cropped(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    text = text[:width]
    while cell_len(text) >= width:
        text = text[:-1]
    return f"{text}…"


def _without_middle(name: str, width: int) -> str:
    """The name, without some of its middle where it is too long: names often differ at their end."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[-tail:]}"


def _cause(job: Job) -> str:
    """The cause of a failed job: the first line of its errorMessage, without the sentence before the cause."""
    if job["state"] != JobState.FAILED:
        return ""
    line = printable(str(job.get("errorMessage", "")).partition("\n")[0])
    return _EXITED.sub("", line) or line


def _brief(cause: str) -> str:
    """`exit code 3 of master 0`, where nothing else is known."""
    match = _EXITED.fullmatch(cause)
    if match is None:
        return cause
    replica, code, signal = match.groups()
    return f"exit code {code} of {replica}" if code else f"signal {signal} of {replica}"


def _activity(job: Job) -> str:
    """Work of an active job: its step, its main metric and the time that is left, or why it waits."""
    return printable(", ".join(_activities(job)))


def _activities(job: Job) -> Iterator[str]:
    if job["state"] == JobState.QUEUED:
        yield (f"#{job['position']} in the queue: " if job.get("position") else "") + (job.get("waiting") or "waiting")
        return
    if text := _ATTENTION.get(job.get("attention", "")):
        yield text
    step, steps, epoch, epochs = (job.get(name) for name in ("step", "steps", "epoch", "epochs"))
    if step is not None:
        yield f"step {step}/{steps}" if steps is not None else f"step {step}"
    elif epoch is not None:
        yield f"epoch {epoch:g}/{epochs:g}" if epochs is not None else f"epoch {epoch:g}"
    if job.get("metric") and job.get("value") is not None:
        yield f"{job['metric']} {float(job['value']):.4g}"
    left = _left_s(job)
    if left is not None:
        yield left_text(left)
    if job.get("activity"):
        yield job["activity"]
    elif step is None and epoch is None and job.get("replicas"):
        yield f"{job['running']} of {formats.count(job['replicas'], 'replica')} running"


def _left_s(job: Job) -> float | None:
    """The time for the remaining steps at the speed since the first one."""
    pace = Pace()
    for step, at in ((job.get("first_step"), job.get("started_at")), (job.get("step"), job.get("step_at"))):
        if step is not None and at:
            pace.add(step, datetime.fromisoformat(at))
    return pace.left_s(job.get("steps")) if job["state"] == JobState.RUNNING else None


def _metric(job: Job) -> str:
    """The first metric that is better where it is smaller or larger, else any."""
    from trainyard_protocol.lines.progress import lower_is_better

    metrics = job.get("metrics", {})
    with_direction = (name for name in metrics if lower_is_better(name) is not None)
    name = next(with_direction, next(iter(metrics), ""))
    return printable(f"{name} {float(metrics[name]):.4g}") if name else ""


def _duration(seconds: int | None) -> str:
    """`1:02:03` or `02:03`."""
    if seconds is None:
        return ""
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60:02}:{rest % 60:02}"


def _time(job: Job, form: str) -> str:
    created = job.get("createTime")
    return datetime.fromisoformat(created).astimezone().strftime(form) if created else ""


def _is_of_year(job: Job, now: datetime) -> bool:
    return str(job.get("createTime", "")).startswith(f"{now.year}-")
