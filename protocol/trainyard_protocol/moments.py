"""Moments as people write them: a time, or how long ago."""

import re
from datetime import UTC, datetime, timedelta

_AGO = re.compile(r"(\d{1,9})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment_of(text: str, now: datetime) -> datetime:
    """The moment that `10m`, `2h`, `1d`, `1w` (before `now`), a date or an RFC 3339 time means; one without a zone is
    UTC. Raises ValueError with what is allowed."""
    try:
        if match := _AGO.fullmatch(text.strip()):
            return now - timedelta(**{_UNITS[match[2]]: int(match[1])})
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            "must be a time such as 2026-11-20 or 2026-11-20T12:00:00Z, or how long ago as 30s, 10m, 2h, 1d or 1w; "
            f"this is {text!r}"
        ) from None
