"""Retention over random jobs: what is removed is old, and no more than needed."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from trainyard_server.domain.retention import (
    ALL,
    EndedJob,
    ProjectRetention,
    ProjectRetentions,
    Removals,
    RetentionPolicy,
    removals,
)

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
    result = removals(ended, {"": total}, NOW, policy)
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


by_project = st.lists(st.tuples(ages, st.integers(0, 100), st.sampled_from("abc")), max_size=30).map(
    lambda rows: [EndedJob(key, NOW - timedelta(days=age), size, name) for key, (age, size, name) in enumerate(rows)]
)
own_limits = st.dictionaries(
    st.sampled_from("abc"),
    st.builds(ProjectRetention, st.none() | st.just(ALL) | ages.map(lambda days: timedelta(days=days)), limits),
)


@given(by_project, own_limits, st.none() | ages, limits)
def test_limits_of_a_project_hold_for_it_and_remove_nothing_of_others(
    ended: list[EndedJob], own: dict[str, ProjectRetention], days: int | None, limit: int | None
) -> None:
    policy = RetentionPolicy(None if days is None else timedelta(days=days), limit, ProjectRetentions(projects=own))
    sizes = {name: sum(job.log_bytes for job in ended if job.project == name) for name in "abc"}
    result = removals(ended, sizes, NOW, policy)
    removed = {*result.jobs, *result.project_logs, *result.logs}
    assert len(removed) == len(result.jobs) + len(result.project_logs) + len(result.logs)
    for name in "abc":
        mine = [job for job in ended if job.project == name]
        given_days = own.get(name, ProjectRetention()).keep_jobs
        keep = policy.keep_jobs if given_days is None else given_days
        assert {job.key for job in mine if job.key in result.jobs} == {
            job.key for job in mine if keep is not None and NOW - job.ended_at > keep
        }
        kept = [job for job in mine if job.key not in removed]
        most = own.get(name, ProjectRetention()).keep_log_bytes
        if most is None:
            assert not {job.key for job in mine} & set(result.project_logs)
        else:
            assert sum(job.log_bytes for job in kept) <= most
    left = sum(job.log_bytes for job in ended if job.key not in removed)
    assert limit is None or left <= limit


@given(jobs, st.integers(0, 500))
def test_retention_keeps_everything_by_default(ended: list[EndedJob], total: int) -> None:
    assert RetentionPolicy().keeps_everything
    assert removals(ended, {"": total}, NOW, RetentionPolicy()) == Removals()
