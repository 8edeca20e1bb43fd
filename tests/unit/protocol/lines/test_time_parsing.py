import re
from datetime import UTC, datetime, timedelta

import pytest

from trainyard_protocol.lines.time_parsing import parse_duration, parse_time

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_time_is_absolute_or_an_age() -> None:
    table = {
        "30s": NOW - timedelta(seconds=30), " 10m ": NOW - timedelta(minutes=10), "24h": NOW - timedelta(days=1),
        "7d": NOW - timedelta(weeks=1), "2w": NOW - timedelta(days=14),
        "2026-11-20": datetime(2026, 11, 20, tzinfo=UTC), "2026-11-20T12:00:00Z": NOW, "2026-11-20T13:00:00+01:00": NOW,
        "2026-11-20T12:00:00": NOW,
    }  # fmt: skip
    assert {text: parse_time(text, NOW) for text in table} == table
    for text in ("", "yesterday", "10", "-1d", "3y", "999999999w", "2026-13-01", "10m ago"):
        says = f"or an age such as 30s, 10m, 2h, 1d or 1w; this is {text!r}"
        with pytest.raises(ValueError, match=re.escape(says)):
            parse_time(text, NOW)


def test_duration_is_a_number_with_a_unit() -> None:
    table = {"90s": 90, " 10m ": 600, "2h": 7200, "1d": 86400, "2w": 14 * 86400}
    assert {text: parse_duration(text).total_seconds() for text in table} == table
    for text in ("", "10", "1y", "-1d", "ten minutes", "999999999w"):
        with pytest.raises(ValueError, match="must be a duration such as 30s, 10m, 2h, 1d or 1w; this is '"):
            parse_duration(text)
