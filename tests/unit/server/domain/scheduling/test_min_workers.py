from dataclasses import replace
from datetime import timedelta

from trainyard_protocol.job.training_input import Scheduling, TrainingInput
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.scheduling.scheduler import NO_QUOTAS, plan
from trainyard_server.domain.snapshots import JobSnapshot
from unit.server.domain.scheduling.queue_support import NOW, agent, only, queued


def elastic(workers: int, least: int, *, retried: bool = True, key: int = 1) -> JobSnapshot:
    """A job with a master and workers of a vCPU each, of which so many are enough for a retry."""
    job = queued(key, 1 + workers, backoff_until=NOW - timedelta(minutes=1) if retried else None)
    return replace(job, training_input=TrainingInput(scheduling=Scheduling(min_workers=least)))


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


def machines(names: list[str], cpus: list[int]) -> list[AgentSnapshot]:
    """Agents of one group with so many CPUs, which scale gangs down."""
    return [
        agent(name, count, gb=32, mode="fit", address=name, group="default")
        for name, count in zip(names, cpus, strict=True)
    ]
