"""Timeline of a job: the time in each state."""

from datetime import UTC, datetime, timedelta

from trainyard_protocol.answers.jobs import EventView
from trainyard_protocol.states import JobState
from trainyard_server.domain.lifecycle.timeline import spans, totals

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


def moved(number: int, seconds: float, before: JobState, after: JobState, run: int | None = None) -> EventView:
    at = START + timedelta(seconds=seconds)
    return EventView(number=number, time=at, kind="job", message="", run=run, before=before.value, after=after.value)


def test_spans_follow_the_moves_and_the_last_one_lasts() -> None:
    events = (
        moved(1, 10, JobState.QUEUED, JobState.PREPARING, 1),
        EventView(number=2, time=START, kind="run", message="", before="PREPARING", after="RUNNING"),
        moved(3, 15, JobState.PREPARING, JobState.RUNNING, 1),
        moved(4, 30, JobState.RUNNING, JobState.QUEUED, 1),
    )
    states = spans(START, events)
    now = START + timedelta(seconds=34)
    assert [(span.state.value, span.seconds(now), span.run) for span in states] == [
        ("QUEUED", 10, None),
        ("PREPARING", 5, 1),
        ("RUNNING", 15, 1),
        ("QUEUED", 4, 1),
    ]
    assert [(span.state.value, span.seconds(now)) for span in totals(states)] == [
        ("QUEUED", 14),
        ("PREPARING", 5),
        ("RUNNING", 15),
    ]
