"""How long a job was in which state, by its events. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_protocol.views import EventView


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in one state. `run` is the run that it belongs to; `until` None: it still lasts."""

    state: JobState
    since: datetime
    until: datetime | None
    run: int | None
    message: str = ""

    def seconds(self, now: datetime) -> float:
        return max(0.0, ((self.until or now) - self.since).total_seconds())


def spans(created_at: datetime, events: Iterable[EventView]) -> tuple[Span, ...]:
    """The states one after the other, from the job's creation on; a final state is none of them."""
    found: list[Span] = []
    state, since, run, message = JobState.QUEUED, created_at, None, ""
    for event in events:
        if event.kind != "job" or event.after not in JobState.__members__:
            continue
        found.append(Span(state, since, event.time, run, message))
        state, since, run, message = JobState[event.after], event.time, event.run, event.message
    if state not in FINAL_JOB_STATES:
        found.append(Span(state, since, None, run, message))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Bar:
    """A span as it is drawn: where it begins and how wide it is, of 1000."""

    span: Span
    x: float
    width: float


def bars(shown: Sequence[Span], now: datetime, least: float = 4.0) -> tuple[Bar, ...]:
    """The spans beside each other, as wide as they are long; each can be seen, however short it was."""
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
