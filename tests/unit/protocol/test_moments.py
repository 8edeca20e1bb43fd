from datetime import UTC, datetime, timedelta

import pytest

from trainyard_protocol.moments import moment_of

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("30s", NOW - timedelta(seconds=30)),
        (" 10m ", NOW - timedelta(minutes=10)),
        ("24h", NOW - timedelta(days=1)),
        ("7d", NOW - timedelta(weeks=1)),
        ("2w", NOW - timedelta(days=14)),
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
        ("2026-11-20T12:00:00Z", NOW),
        ("2026-11-20T13:00:00+01:00", NOW),
        ("2026-11-20T12:00:00", NOW),
    ],
)
def test_moment_is_a_time_or_how_long_ago(said: str, meant: datetime) -> None:
    assert moment_of(said, NOW) == meant


@pytest.mark.parametrize("said", ["", "yesterday", "10", "-1d", "3y", "999999999w", "2026-13-01", "10m ago"])
def test_moment_that_is_none_says_what_would_be(said: str) -> None:
    with pytest.raises(ValueError, match="or how long ago as 30s, 10m, 2h, 1d or 1w; this is '") as caught:
        moment_of(said, NOW)
    assert repr(said) in str(caught.value)
