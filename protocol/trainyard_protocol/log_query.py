"""What may be asked of a job's log: severities, from the least to the most, and times."""

import re
from datetime import UTC, datetime, timedelta

SEVERITIES = ("DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL")

_AGO = re.compile(r"(\d{1,9})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def since_moment(text: str, now: datetime) -> datetime:
    """The moment that `10m`, `2h`, `1d` (before `now`) or an RFC 3339 time means; one without a zone is UTC.
    Raises ValueError with what is allowed."""
    try:
        if match := _AGO.fullmatch(text.strip()):
            return now - timedelta(**{_UNITS[match[2]]: int(match[1])})
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"must be a time such as 2026-11-20T12:00:00Z, or how long ago as 30s, 10m, 2h or 1d; this is {text!r}"
        ) from None
