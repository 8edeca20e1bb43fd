"""Timeline of a job: the time in each state."""

import itertools
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.states import JOB_MOVES, JobState
from trainyard_protocol.views.views import EventView
from trainyard_server.domain.lifecycle.timeline import bars, spans, totals

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


def test_final_state_is_no_span() -> None:
    states = spans(START, (moved(1, 10, JobState.QUEUED, JobState.CANCELLING),))
    assert [span.state for span in states] == [JobState.QUEUED, JobState.CANCELLING]
    ended = spans(START, (moved(1, 10, JobState.QUEUED, JobState.CANCELLED),))
    assert [(span.state, span.until) for span in ended] == [(JobState.QUEUED, START + timedelta(seconds=10))]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_bars_fill_the_width_and_each_can_be_seen(pauses: list[float]) -> None:
    events, at, state = [], 0.0, JobState.QUEUED
    for number, pause in enumerate(pauses):
        after = next(iter(sorted(JOB_MOVES[state]))) if JOB_MOVES[state] else JobState.QUEUED
        at += pause
        events.append(moved(number + 1, at, state, after))
        state = after
    now = START + timedelta(seconds=at)
    drawn = bars(spans(START, events), now)
    assert all(bar.width >= 4 for bar in drawn)
    assert abs(sum(bar.width for bar in drawn) - 1000) < 0.1 * len(drawn)
    assert all(abs(b.x - (a.x + a.width)) < 0.1 for a, b in itertools.pairwise(drawn))
