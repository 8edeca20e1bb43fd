"""Parsing of times written by people: RFC 3339, a date, or a duration such as 10m."""

import re
from datetime import UTC, datetime, timedelta

_DURATION = re.compile(r"(\d{1,9})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_time(text: str, now: datetime) -> datetime:
    """Parse `30s`, `10m`, `2h`, `1d`, `1w` (before `now`), a date or an RFC 3339 time; UTC if it has no zone.

    Raises ValueError with the allowed forms."""
    try:
        if match := _DURATION.fullmatch(text.strip()):
            return now - _duration(match)
        time = datetime.fromisoformat(text.strip())
        return (time.replace(tzinfo=UTC) if time.tzinfo is None else time).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            "must be a time such as 2026-11-20 or 2026-11-20T12:00:00Z, or an age such as 30s, 10m, 2h, 1d or 1w; "
            f"this is {text!r}"
        ) from None


def parse_duration(text: str) -> timedelta:
    """Parse `30s`, `10m`, `2h`, `1d`, `1w`. Raises ValueError with the allowed forms."""
    match = _DURATION.fullmatch(text.strip())
    try:
        if match is not None:
            return _duration(match)
    except OverflowError:
        pass
    raise ValueError(f"must be a duration such as 30s, 10m, 2h, 1d or 1w; this is {text!r}")


def _duration(match: re.Match[str]) -> timedelta:
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
