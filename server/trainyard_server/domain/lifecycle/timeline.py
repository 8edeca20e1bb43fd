"""Timeline of a job: the time in each state, from its events. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from trainyard_protocol.answers.jobs import EventView
from trainyard_protocol.states import FINAL_JOB_STATES, JobState, RunState

_ROUTINE = {
    "acknowledged",
    "created",
    "log-complete",
    "preparing",
    "replica",
    "runtime",
    "trial",
    "validated",
    "waiting",
}


@dataclass(frozen=True, slots=True)
class StateSpan:
    """A time span in one state. `run` is its run; `until` is None while it lasts."""

    state: JobState
    since: datetime
    until: datetime | None
    run: int | None
    message: str = ""

    def seconds(self, now: datetime) -> float:
        return max(0.0, ((self.until or now) - self.since).total_seconds())


def spans(created_at: datetime, events: Iterable[EventView]) -> tuple[StateSpan, ...]:
    """The states in order, from the job's creation; without the final state."""
    states: list[StateSpan] = []
    state, since, run, message = JobState.QUEUED, created_at, None, ""
    for event in events:
        if event.kind != "job" or event.after not in JobState.__members__:
            continue
        states.append(StateSpan(state, since, event.time, run, message))
        state, since, run, message = JobState[event.after], event.time, event.run, event.message
    if state not in FINAL_JOB_STATES:
        states.append(StateSpan(state, since, None, run, message))
    return tuple(states)


def totals(shown: Iterable[StateSpan]) -> tuple[StateSpan, ...]:
    """One span for each state, as long as all its spans together; it ends where the last of them does."""
    last: dict[JobState, StateSpan] = {}
    for span in shown:
        before = last.get(span.state)
        if before is not None and before.until is not None:
            span = replace(span, since=span.since - (before.until - before.since), run=None)
        last[span.state] = span
    return tuple(last.values())


def is_routine(event: EventView) -> bool:
    """Whether every job has such an event, so that it says little about this one."""
    tells_verdict = event.after == RunState.ENDED and bool(event.message)
    return event.kind in _ROUTINE or (event.kind == "run" and not tells_verdict)


@dataclass(frozen=True, slots=True)
class Bar:
    """A span with its position and width in a drawing 1000 wide."""

    span: StateSpan
    x: float
    width: float


def bars(shown: Sequence[StateSpan], now: datetime, least: float = 4.0) -> tuple[Bar, ...]:
    """The spans side by side, as wide as they are long, and at least `least` wide."""
    if not shown:
        return ()
    total = sum(span.seconds(now) for span in shown)
    free = 1000.0 - least * len(shown)
    placed, x = [], 0.0
    for span in shown:
        share = span.seconds(now) / total if total else 1 / len(shown)
        width = least + max(0.0, free) * share
        placed.append(Bar(span, round(x, 2), round(width, 2)))
        x += width
    return tuple(placed)
