"""Forecast of the retention: what the retention would remove, now and later, with its limits or with others."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.views.stored.retention import ForecastItem, ProjectForecast, RemovalAmount, RetentionForecast
from trainyard_server.config.retention_entries import read_keep_jobs
from trainyard_server.context import Backend
from trainyard_server.control.retention_survey import Survey
from trainyard_server.domain.retention import ALL, Removals, RetentionPolicy, removals

_PAGE = 500
_MOST_ITEMS = 1000
_LONGEST = timedelta(days=36_500)


class RetentionForecasts:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def forecast(self, within: timedelta, keep_jobs: str = "", keep_logs_gb: float | None = None) -> RetentionForecast:
        """The removals now, and within a time; `keep_jobs` and `keep_logs_gb` are other limits of the site than those
        in force. Removes nothing. Raises InvalidArgument."""
        if within > _LONGEST:
            raise InvalidArgument(f"The time must be at most {_LONGEST.days}d; this is {within.days}d.")
        policy, now = self._policy(keep_jobs, keep_logs_gb), self._backend.clock()
        survey = Survey()
        while survey.look_on(self._backend, _PAGE, measures=True):
            pass
        soon = removals(survey.ended.values(), survey.log_bytes, now, policy)
        later = removals(survey.ended.values(), survey.log_bytes, now + within, policy)
        at_once, in_time = _removed(soon), _removed(later)
        keys = [(key, what, True) for key, what in at_once.items()]
        keys += [(key, what, False) for key, what in in_time.items() if at_once.get(key) != what]
        keys.sort(key=lambda removal: (survey.ended[removal[0]].ended_at, removal[0], not removal[2]))
        items = tuple(
            ForecastItem(
                project=survey.ended[key].project,
                job=survey.names[key],
                what=what,
                ended_at=survey.ended[key].ended_at,
                log_bytes=survey.ended[key].log_bytes,
                is_now=is_now,
            )
            for key, what, is_now in keys[:_MOST_ITEMS]
        )
        amounts = _amounts(survey, soon), _amounts(survey, later)
        return RetentionForecast(
            keep_log_bytes=policy.keep_log_bytes,
            projects=tuple(_project(name, survey, policy, *amounts) for name in sorted(survey.log_bytes)),
            items=items,
            left_out=len(keys) - len(items),
        )

    def _policy(self, keep_jobs: str, keep_logs_gb: float | None) -> RetentionPolicy:
        policy = self._backend.retention
        if keep_jobs:
            try:
                time = read_keep_jobs(keep_jobs)
            except ValueError as error:
                raise InvalidArgument(f"keepJobs {error}.") from error
            policy = replace(policy, keep_jobs=None if time == ALL else time)
        if keep_logs_gb is not None:
            policy = replace(policy, keep_log_bytes=round(keep_logs_gb * 10**9) or None)
        return policy


def _removed(result: Removals) -> dict[int, Literal["job", "log"]]:
    removed: dict[int, Literal["job", "log"]] = dict.fromkeys(result.jobs, "job")
    return removed | dict.fromkeys((*result.project_logs, *result.logs), "log")


def _amounts(survey: Survey, result: Removals) -> Counter[tuple[str, str]]:
    """Jobs, logs and bytes by project."""
    amounts: Counter[tuple[str, str]] = Counter()
    parts = (("jobs", result.jobs), ("logs", result.project_logs), ("logs", result.logs))
    for what, keys in parts:
        for key in keys:
            job = survey.ended[key]
            amounts[job.project, what] += 1
            amounts[job.project, "log_bytes"] += job.log_bytes
    return amounts


def _project(
    name: str, survey: Survey, policy: RetentionPolicy, now: Counter[tuple[str, str]], later: Counter[tuple[str, str]]
) -> ProjectForecast:
    limits = policy.of(name)
    amounts = [
        RemovalAmount(jobs=part[name, "jobs"], logs=part[name, "logs"], log_bytes=part[name, "log_bytes"])
        for part in (now, later)
    ]
    return ProjectForecast(
        project=name,
        keep_jobs_s=limits.keep_jobs.total_seconds() if limits.keep_jobs is not None else None,
        keep_log_bytes=limits.keep_log_bytes,
        log_bytes=survey.log_bytes[name],
        now=amounts[0],
        later=amounts[1],
    )
