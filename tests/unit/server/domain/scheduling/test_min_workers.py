from dataclasses import replace
from datetime import timedelta

from trainyard_protocol.job.training_input import Scheduling, TrainingInput
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.scheduling.scheduler import NO_QUOTAS, plan
from trainyard_server.domain.snapshots import JobSnapshot
from unit.server.domain.scheduling.queue_support import NOW, agent, held, only, placed, queued


def elastic(workers: int, least: int, *, retried: bool = True, key: int = 1) -> JobSnapshot:
    """A job with a master and workers of a vCPU each, of which so many are enough for a retry."""
    job = queued(key, 1 + workers, backoff_until=NOW - timedelta(minutes=1) if retried else None)
    return replace(job, training_input=TrainingInput(scheduling=Scheduling(min_workers=least)))


def test_retry_starts_with_as_many_workers_as_have_room() -> None:
    placement = only(plan([elastic(5, 1)], [agent("a", 3), agent("b", 4, gb=32)], NOW))
    assert placement.agent_id == "b"
    assert [given.task for given in placement.assignments] == [
        "master-replica-0",
        *(f"worker-replica-{number}" for number in range(3)),
    ]
    assert placement.scaled == "Starting with 3 of 5 workers, because there is no room for all."
    whole = only(plan([elastic(5, 1)], [agent("b", 4, gb=32), agent("c", 8, gb=32)], NOW))
    assert (whole.agent_id, len(whole.assignments), whole.scaled) == ("c", 6, "")


def test_job_waits_where_it_has_not_run_or_there_is_room_for_too_few() -> None:
    assert placed(plan([elastic(5, 1, retried=False)], [agent("b", 4, gb=32)], NOW)) == []
    assert placed(plan([elastic(5, 0)], [agent("b", 4, gb=32)], NOW)) == []
    waiting = plan([elastic(5, 4)], [agent("b", 4, gb=32)], NOW).waiting[1]
    assert (waiting.kind, waiting.reason.split("; ")[0]) == (
        "never",
        "can never start on the agents here: needs 6 vCPU and 12.0 GB",
    )


def test_room_that_others_have_is_not_waited_for_and_that_of_jobs_ahead_not_taken() -> None:
    busy = agent("b", 6, gb=32, gangs=(held(0, 1),))
    assert len(only(plan([elastic(5, 1)], [busy], NOW)).assignments) == 4
    ahead = queued(2, cpus=6, gb=2, age=60)
    result = plan([replace(elastic(5, 1), priority=-1), ahead], [busy], NOW)
    assert placed(result) == []


def test_workers_are_left_out_before_a_gang_is_scaled_down() -> None:
    """Each row: the job with its vCPU each, the vCPU of the machines, the quota, and the parts that it gets: their
    replicas, and `/` of the vCPU of the first if that is scaled down. "": it waits."""
    one, two, three = (["a"], [1]), (["a", "b"], [1, 1]), (["a", "b", "c"], [1, 1, 2])
    retry, first = elastic(2, 1), elastic(2, 1, retried=False)
    rows = {
        "retry, of three machines one is lost": (retry, two, NO_QUOTAS, "1 1"),
        "first run": (first, two, NO_QUOTAS, "1 1"),
        "enough machines": (first, three, NO_QUOTAS, "2 1"),
        "one machine that holds the least": (elastic(5, 1), (["a"], [3]), NO_QUOTAS, "3"),
        "one machine that does not": (retry, one, NO_QUOTAS, "3/1"),
        "all workers are needed": (elastic(2, 2), two, NO_QUOTAS, "3/1"),
        "not elastic": (elastic(2, 0), two, NO_QUOTAS, "3/1"),
        "a quota below the least": (retry, two, Quotas({"vcpus": 1}), "3/1"),
        "a quota of the least": (retry, two, Quotas({"vcpus": 2}), "1 1"),
    }
    wrong = {}
    for what, (job, (names, cpus), limits, expected) in rows.items():
        result = plan([job], machines(names, cpus), NOW, limits)
        parts = only(result).parts if result.placements else ()
        found = " ".join(str(len(part.assignments)) for part in parts)
        if len(parts) == 1 and "Scaled down" in only(result).scaled:
            found += f"/{parts[0].assignments[0].vcpus}"
        if found != expected:
            wrong[what] = found
    assert not wrong
    assert only(plan([first], machines(*two), NOW)).scaled == (
        "Starting with 1 of 2 workers, because there is no room for all."
    )


def test_job_that_fits_with_fewer_workers_waits_for_room_and_is_not_scaled_down() -> None:
    a, b = machines(["a", "b"], [1, 1])
    busy = [a, replace(b, gangs=(held(0),))]
    for job in (elastic(2, 1), elastic(2, 1, retried=False)):
        result = plan([job], busy, NOW)
        assert placed(result) == []
        assert result.waiting[1].reason.startswith("needs 2 vCPU and 4.0 GB on several agents; a and b have 1 vCPU")


def machines(names: list[str], cpus: list[int]) -> list[AgentSnapshot]:
    """Agents of one group with so many CPUs, which scale gangs down."""
    return [
        agent(name, count, gb=32, mode="fit", address=name, group="default")
        for name, count in zip(names, cpus, strict=True)
    ]
