"""Retention over random jobs: what is removed is old, by the limit of its own project, and the oldest first."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from trainyard_server.domain.retention import ALL, EndedJob, ProjectRetentions, RetentionPolicy, removals

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ages = st.integers(0, 50)
jobs = st.lists(st.tuples(ages, st.sampled_from("abc")), max_size=30).map(
    lambda rows: [EndedJob(key, NOW - timedelta(days=age), name) for key, (age, name) in enumerate(rows)]
)
site_limits = st.none() | ages.map(lambda days: timedelta(days=days))
own_limits = st.none() | st.just(ALL) | site_limits


@given(jobs, site_limits, own_limits, st.dictionaries(st.sampled_from("abc"), own_limits))
def test_retention_removes_the_oldest_and_no_more_than_needed(
    ended: list[EndedJob], site: timedelta | None, default: timedelta | None, projects: dict[str, timedelta | None]
) -> None:
    policy = RetentionPolicy(site, ProjectRetentions(default, projects))
    removed = removals(ended, NOW, policy)
    limits = {name: (projects.get(name, default), site, ALL) for name in "abc"}
    keeps = {name: next(limit for limit in given if limit is not None) for name, given in limits.items()}
    assert set(removed) == {job.key for job in ended if NOW - job.ended_at > keeps[job.project]}
    assert removed == sorted(removed, key=lambda key: (ended[key].ended_at, key))
    assert not (policy.keeps_everything and removed)


def test_retention_keeps_everything_by_default() -> None:
    assert RetentionPolicy().keeps_everything
