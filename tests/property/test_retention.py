"""Retention over random jobs: what is removed is old, and no more than needed."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from trainyard_server.domain.retention import EndedJob, Removals, RetentionPolicy, removals

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ages = st.integers(0, 50)
jobs = st.lists(st.tuples(ages, st.integers(0, 100)), max_size=30).map(
    lambda rows: [EndedJob(key, NOW - timedelta(days=age), size) for key, (age, size) in enumerate(rows)]
)
limits = st.none() | st.integers(0, 1500)


@given(jobs, st.integers(0, 500), st.none() | ages, limits)
def test_retention_removes_the_oldest_and_no_more_than_needed(
    ended: list[EndedJob], active_bytes: int, days: int | None, limit: int | None
) -> None:
    policy = RetentionPolicy(None if days is None else timedelta(days=days), limit)
    total = active_bytes + sum(job.log_bytes for job in ended)
    result = removals(ended, total, NOW, policy)
    by_key = {job.key: job for job in ended}
    too_old = {job.key for job in ended if days is not None and NOW - job.ended_at > timedelta(days=days)}
    assert set(result.jobs) == too_old
    if limit is None:
        assert result.logs == ()
        return
    left = [job for job in ended if job.key not in too_old and job.log_bytes]
    oldest = sorted(left, key=lambda job: (job.ended_at, job.key))
    assert result.logs == tuple(job.key for job in oldest[: len(result.logs)])
    after = total - sum(by_key[key].log_bytes for key in (*result.jobs, *result.logs))
    assert after <= limit or len(result.logs) == len(left)
    if result.logs:
        assert after + by_key[result.logs[-1]].log_bytes > limit


@given(jobs, st.integers(0, 500))
def test_retention_keeps_everything_by_default(ended: list[EndedJob], total: int) -> None:
    assert RetentionPolicy().keeps_everything
    assert removals(ended, total, NOW, RetentionPolicy()) == Removals()
