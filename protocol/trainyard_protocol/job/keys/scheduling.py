"""Limits of what a job says of its failures: its retry rules, and the time for which a failed replica is kept. Pure."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from trainyard_protocol.errors import shown
from trainyard_protocol.fields import Boolean, Duration, Int32, Text, enum_of, seconds, validation_error
from trainyard_protocol.message import Message

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


MIN_WAIT_TIME_S = 1800.0
DEFAULT_MAX_RUNNING_TIME_S = 604800.0


class Band(StrEnum):
    """A band of priority: jobs of a higher one go first, whatever their `priority` is. Not of the v1 API."""

    PRODUCTION = "PRODUCTION"
    NORMAL = "NORMAL"
    BATCH = "BATCH"


def _wait_time(value: str) -> str:
    if seconds(value) < MIN_WAIT_TIME_S:
        raise validation_error(f"must be at least {MIN_WAIT_TIME_S:.0f}s; this is {value}.")
    return value


def _priority(value: int) -> int:
    if not 0 <= value <= 1000:
        raise validation_error(f"must be between 0 and 1000; this is {value}.")
    return value


ExitCode = Annotated[Int32, AfterValidator(checked_code)]


class RetryRule(Message):
    """A rule by which a failed run is followed by a new one, `count` times: by the exit code of the replica that failed
    first, or by a pattern of RE2 in a line of its log. `other_host`: on another machine, if there is one. Not of the v1
    API."""

    exit_codes: Annotated[tuple[ExitCode, ...], BeforeValidator(not_too_many_codes)] = ()
    log: Annotated[Text, AfterValidator(checked_pattern)] = ""
    count: Annotated[Int32, AfterValidator(checked_count)] = 1
    other_host: Boolean = False

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if bool(self.exit_codes) == bool(self.log):
            raise validation_error("must have either exitCodes or log, such as exitCodes: [33].")
        return self

    @property
    def condition(self) -> str:
        """The condition as a config has it, for a message: `exitCodes: [33]`."""
        return f"log: {shown(self.log)}" if self.log else f"exitCodes: {list(self.exit_codes)}"


class Scheduling(Message):
    """The last five are not of the v1 API. `min_workers`: a new run may start with so many workers where there is no
    room for all; 0: it waits for all. `retry`: by which rules a failed run is followed by a new one; None: by the
    service's own. `keep_on_failure`: for how long a replica whose program failed is kept; None: it is not.
    `disable_retries`: no new run follows one that was RUNNING, whatever ended it."""

    max_running_time: Duration = f"{DEFAULT_MAX_RUNNING_TIME_S:.0f}s"
    max_wait_time: Annotated[Duration, AfterValidator(_wait_time)] | None = None
    priority: Annotated[Int32, AfterValidator(_priority)] = 0
    band: Annotated[Band, enum_of(Band)] = Band.NORMAL
    min_workers: Int32 = 0
    retry: Annotated[tuple[RetryRule, ...], BeforeValidator(not_too_many_rules)] | None = None
    keep_on_failure: Annotated[Duration, AfterValidator(checked_kept_time)] | None = None
    disable_retries: Boolean = False

    @model_validator(mode="after")
    def _retries_or_not(self) -> Self:
        if self.disable_retries and self.retry:
            raise validation_error("has retry and disableRetries, which exclude each other: remove one of the two.")
        return self
