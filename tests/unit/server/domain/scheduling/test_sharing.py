"""Bands, fair share and waiting too long: the order of the queue."""

from dataclasses import replace
from datetime import datetime, timedelta

from trainyard_server.domain.scheduling.scheduler import in_order
from trainyard_server.domain.scheduling.sharing import (
    FIRST_COME,
    Account,
    FairShare,
    ProjectRules,
    Sharing,
    decayed,
    standings,
)
from trainyard_server.domain.snapshots import JobSnapshot
from unit.server.domain.scheduling.queue_support import NOW, of_band

FAIR = Sharing(fair_share=FairShare())


def keys(sharing: Sharing, *jobs: JobSnapshot, now: datetime = NOW) -> list[int]:
    return [job.key for job in in_order(jobs, sharing, now)]


def test_bands_go_before_priorities_and_priorities_before_age() -> None:
    jobs = (
        of_band("batch", 1, priority=1000, age=900),
        of_band("normal", 2, age=600),
        of_band("normal", 3, priority=1),
        of_band("production", 4),
    )
    assert keys(FIRST_COME, *jobs) == [4, 3, 2, 1]


def test_who_has_waited_too_long_goes_first_whatever_its_band_is() -> None:
    old, older = (of_band("batch", key, age=days * 86400) for key, days in ((1, 8), (2, 9)))
    production = of_band("production", 3, priority=1000, age=6 * 86400)
    assert keys(FIRST_COME, production, old, older) == [2, 1, 3]
    assert "goes ahead of all jobs that have not" in FIRST_COME.explanation(old, NOW)


def test_project_beyond_its_budget_is_in_the_band_batch() -> None:
    sharing = Sharing(over_budget=frozenset({"p"}))
    over, other = of_band("production", 1, age=60), of_band("normal", 2, project="q")
    assert keys(sharing, over, other) == [2, 1]
    assert "has used up this month's budget" in sharing.explanation(over, NOW)


def test_fair_share_delays_whoever_used_more_than_its_share() -> None:
    ana, bo, cy = (Account("p", name) for name in ("ana", "bo", "cy"))
    stand = standings(FAIR, {ana: 90.0, bo: 10.0}, [cy])
    assert stand[ana].delay > stand[bo].delay > stand[cy].delay
    assert max(standing.delay for standing in stand.values()) <= FairShare().delay
    sharing = replace(FAIR, standings=stand)
    jobs = [of_band("normal", key, owner=owner, age=age) for key, owner, age in ((1, "ana", 7200), (2, "cy", 60))]
    assert keys(sharing, *jobs) == [2, 1], "ana's counts as submitted hours later"
    jobs[0] = of_band("normal", 1, owner="ana", age=90_000)
    assert keys(sharing, *jobs) == [1, 2], "but never by more than a day"
    sentence = sharing.explanation(jobs[0], NOW)
    assert ": ana (p) recently used 90% of the site; the fair share is 33%." in sentence


def test_shares_of_projects_weigh_their_usage() -> None:
    rules = replace(FAIR, projects={"big": ProjectRules(share=3.0)})
    used = {Account("big", "ana"): 75.0, Account("small", "bo"): 25.0}
    stand = standings(rules, used, ())
    assert stand[Account("big", "ana")].delay == stand[Account("small", "bo")].delay
    assert standings(rules, {}, [Account("big", "ana")]) == {}, "nobody has used anything"
    assert standings(FIRST_COME, used, ()) == {}


def test_usage_loses_half_of_its_weight_in_each_half_life() -> None:
    week = timedelta(days=7)
    assert [decayed(8, age * week, week) for age in (0, 1, 2)] == [8, 4, 2]
    assert decayed(8, -week, week) == 8, "a clock that was set back"
