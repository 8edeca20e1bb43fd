"""Parsing of times written by people: RFC 3339, a date, or an age such as 10m."""

import re
from datetime import UTC, datetime, timedelta

_AGO = re.compile(r"(\d{1,9})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_time(text: str, now: datetime) -> datetime:
    """Parse `30s`, `10m`, `2h`, `1d`, `1w` (before `now`), a date or an RFC 3339 time; UTC if it has no zone.

    Raises ValueError with the allowed forms."""
    try:
        if match := _AGO.fullmatch(text.strip()):
            return now - timedelta(**{_UNITS[match[2]]: int(match[1])})
        time = datetime.fromisoformat(text.strip())
        return (time.replace(tzinfo=UTC) if time.tzinfo is None else time).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            "must be a time such as 2026-11-20 or 2026-11-20T12:00:00Z, or an age such as 30s, 10m, 2h, 1d or 1w; "
            f"this is {text!r}"
        ) from None
