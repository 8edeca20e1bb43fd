"""Limits of what a job says of its failures: its retry rules, and the time for which a failed replica is kept. Pure."""

from collections.abc import Sequence

from trainyard_protocol.fields import seconds, validation_error

MAX_RULES = 16
"""Retry rules of one job."""

MAX_COUNT = 100
"""Retries by one rule."""

MAX_PATTERN = 512
"""Characters of a pattern of the log."""

MAX_CODE = 255
MAX_KEPT_S = 86_400.0


def not_too_many_rules(value: object) -> object:
    if isinstance(value, Sequence) and len(value) > MAX_RULES:
        raise validation_error(f"may have at most {MAX_RULES} rules; it has {len(value)}.")
    return value


def not_too_many_codes(value: object) -> object:
    if isinstance(value, Sequence) and len(value) > MAX_CODE:
        raise validation_error(f"may list at most {MAX_CODE} exit codes; it lists {len(value)}.")
    return value


def checked_code(value: int) -> int:
    if not 1 <= value <= MAX_CODE:
        raise validation_error(f"must be an exit code of a failure, from 1 to {MAX_CODE}; this is {value}.")
    return value


def checked_pattern(value: str) -> str:
    if len(value) > MAX_PATTERN:
        raise validation_error(f"must be a pattern of at most {MAX_PATTERN} characters; this has {len(value)}.")
    return value


def checked_count(value: int) -> int:
    if not 1 <= value <= MAX_COUNT:
        raise validation_error(f"must be between 1 and {MAX_COUNT}; this is {value}.")
    return value


def checked_kept_time(value: str) -> str:
    if not 0 < seconds(value) <= MAX_KEPT_S:
        raise validation_error(f"must be more than 0s and at most {MAX_KEPT_S:.0f}s (a day); this is {value}.")
    return value
