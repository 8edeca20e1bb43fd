"""Retention: which jobs and which logs are removed, by age and by size. Pure.

Only jobs that have ended are considered, the oldest first.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Limits: the time for which jobs are kept after their end, and the bytes of all logs together. None: no limit."""

    keep_jobs: timedelta | None = None
    keep_log_bytes: int | None = None

    @property
    def keeps_everything(self) -> bool:
        return self.keep_jobs is None and self.keep_log_bytes is None


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended, with the bytes of its log; 0 without one."""

    key: int
    ended_at: datetime
    log_bytes: int


@dataclass(frozen=True, slots=True)
class Removals:
    """Keys, the oldest first: of `jobs` to remove whole, and of others that lose their log alone."""

    jobs: tuple[int, ...] = ()
    logs: tuple[int, ...] = ()


def removals(ended: Iterable[EndedJob], all_log_bytes: int, now: datetime, policy: RetentionPolicy) -> Removals:
    """The removals that the policy asks for now. `all_log_bytes` counts the logs of jobs that have not ended, too."""
    ordered = sorted(ended, key=lambda job: (job.ended_at, job.key))
    jobs = [job for job in ordered if policy.keep_jobs is not None and now - job.ended_at > policy.keep_jobs]
    logs: list[EndedJob] = []
    if policy.keep_log_bytes is not None:
        excess = all_log_bytes - sum(job.log_bytes for job in jobs) - policy.keep_log_bytes
        for job in ordered[len(jobs) :]:
            if excess <= 0:
                break
            if job.log_bytes:
                logs.append(job)
                excess -= job.log_bytes
    return Removals(tuple(job.key for job in jobs), tuple(job.key for job in logs))
