"""Forecast of what the retention would remove, by project."""

from datetime import datetime
from typing import Literal

from trainyard_protocol.message import Wire


class RemovalAmount(Wire):
    """An amount: whole jobs, logs of jobs that stay, and the bytes of the logs of both."""

    jobs: int = 0
    logs: int = 0
    log_bytes: int = 0


class ProjectForecast(Wire):
    """The limits that hold for a project (None: no limit; the size is of its own logs), the bytes of its logs, and what
    would go now and within the time that was asked for, what goes now included."""

    project: str
    keep_jobs_s: float | None
    keep_log_bytes: int | None
    log_bytes: int
    now: RemovalAmount
    later: RemovalAmount


class ForecastItem(Wire):
    """A job, or the log of one that stays; `log_bytes` without what was removed before."""

    project: str
    job: str
    what: Literal["job", "log"]
    ended_at: datetime
    log_bytes: int
    is_now: bool


class RetentionForecast(Wire):
    """The removals that retention would do now and within a time, if no job ends and no log grows. `items`: the first
    ones to go, the oldest first; `left_out`: how many more there are. `keep_log_bytes` is the site's limit of all logs
    together."""

    keep_log_bytes: int | None
    projects: tuple[ProjectForecast, ...]
    items: tuple[ForecastItem, ...]
    left_out: int = 0
