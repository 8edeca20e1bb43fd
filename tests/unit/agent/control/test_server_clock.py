"""The server's clock by the times of syncs: the truth is always within the bound."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from trainyard_agent.control.server_clock import ServerClock

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def sync(clock: ServerClock, at: datetime, ahead: float, there: float, held: float, back: float) -> datetime:
    """A sync at this time of a server whose clock is so much ahead. Returns when its answer is here."""
    received = at + seconds(ahead + there)
    end = at + seconds(there + held + back)
    clock.add(at, received, received + seconds(held), end)
    return end


def test_quick_sync_is_kept_until_a_slow_one_knows_more() -> None:
    clock = ServerClock()
    assert clock.offset(NOW) is None
    end = sync(clock, NOW, 300, 0.001, 20, 0.003)
    offset = clock.offset(end)
    assert offset is not None
    assert abs(offset.offset_s - 300) <= offset.error_s < 0.0025, "an answer that is held costs nothing"
    later = sync(clock, end, 300, 1.0, 0, 2.0)
    assert clock.offset(later) != offset
    kept = clock.offset(later)
    assert kept is not None
    assert kept.error_s < 0.01, "it grows with the drift alone"


def test_clock_that_was_set_is_known_with_the_next_sync() -> None:
    clock = ServerClock()
    sync(clock, NOW, 0, 0.001, 0, 0.001)
    sync(clock, NOW, -3600, 0.2, 0, 0.3)
    offset = clock.offset(NOW)
    assert offset is not None
    assert abs(offset.offset_s + 3600) <= offset.error_s
    clock.add(NOW, NOW, NOW + seconds(9), NOW + seconds(1))  # set while the answer was on its way
    assert clock.offset(NOW) == offset


ways = st.floats(0, 5)


@given(st.floats(-1e5, 1e5), st.lists(st.tuples(ways, ways, ways), min_size=1, max_size=6))
def test_truth_is_within_the_bound(ahead: float, syncs: list[tuple[float, float, float]]) -> None:
    clock, at = ServerClock(), NOW
    for there, held, back in syncs:
        at = sync(clock, at, ahead, there, held, back)
    offset = clock.offset(at)
    assert offset is not None
    assert abs(offset.offset_s - ahead) <= offset.error_s + 1e-4
