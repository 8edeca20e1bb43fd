"""Suggestions for a waiting job: each change really starts it, and the smallest of its kind."""

from dataclasses import replace
from datetime import timedelta

from trainyard_protocol.job.cluster import Task
from trainyard_protocol.job.machines import ReplicaRequest, Resources, default_catalog
from trainyard_server.capabilities.why.suggestions import Situation, suggestions
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.snapshots import JobSnapshot
from unit.server.domain.scheduling.queue_support import NOW, agent, held, queued

CATALOG = default_catalog()


def of_types(key: int, master: str, worker: str = "", workers: int = 0, **given: object) -> JobSnapshot:
    def request(task: Task, name: str) -> ReplicaRequest:
        machine = CATALOG.machine_types[name]
        return ReplicaRequest(task, name, Resources(machine.vcpus, round(machine.memory_gb * 10**9)))

    gang = [request(Task("master", 0), master), *(request(Task("worker", n), worker) for n in range(workers))]
    return replace(queued(key, **given), gang=tuple(gang))  # type: ignore[arg-type]


def messages(
    job: JobSnapshot, agents: list[AgentSnapshot], others: tuple[JobSnapshot, ...] = (), quotas: Quotas | None = None
) -> list[str]:
    situation = Situation((job, *others), tuple(agents), NOW, quotas or Quotas(), CATALOG)
    return [change.message for change in suggestions(job, situation, "job{}".format)]


def test_fewer_workers_and_smaller_machines_and_the_end_of_the_job_that_frees_least() -> None:
    host = agent(cpus=16, gb=64, gangs=(held(*range(6), key=7), held(*range(6, 10), key=8), held(10, key=9)))
    assert messages(of_types(1, "local-2", "local-2", 3), [host]) == [
        "a workerCount of 1 (it has 3)",
        "workerType local-1 (1 vCPU, 2 GB) instead of local-2",
        "the end of job8",
    ]


def test_priority_above_those_that_are_ahead() -> None:
    ahead = (queued(2, cpus=4, priority=5, age=9), queued(3, cpus=2, priority=3, age=9))
    host = agent(cpus=4, gangs=(held(0, 1),))
    assert messages(of_types(1, "local-1"), [host], ahead)[0] == "a priority above 5 (it has 0)"
    highest = queued(2, cpus=4, priority=1000)
    # And the end of the other helps that one alone.
    assert messages(of_types(1, "local-1"), [host], (highest,)) == []


def test_all_types_at_once_where_one_is_not_enough() -> None:
    suggested = messages(of_types(1, "local-4", "local-4", 1), [agent(cpus=2, gb=64)])
    assert suggested == ["masterType and workerType local-1 (1 vCPU, 2 GB) instead of local-4"]


def test_changed_job_stands_behind_those_that_wait_already() -> None:
    """It would fit with one replica, but then it is a new job, and the other takes the place."""
    other = queued(2, age=1)
    job = of_types(1, "local-1", "local-1", 1, age=9)
    host = agent(cpus=2, gangs=(held(0),))
    assert "a workerCount of 0 (it has 1)" not in messages(job, [host], (other,))
    assert "a workerCount of 0 (it has 1)" in messages(job, [host])


def test_larger_quota_is_as_large_as_needed() -> None:
    host = agent(cpus=8, gb=64, gangs=(held(0, 1),))
    suggested = messages(of_types(1, "local-4"), [host], quotas=Quotas({}, {"p": {"vcpus": 4, "jobs": 1}}))
    assert suggested == ["a quota of 6 vCPU and 2 running jobs for project p", "the end of job99"]


def test_silent_agent_that_comes_back() -> None:
    agents = [agent("small", 1), agent("big", 4, gb=32, alive=False)]
    assert messages(of_types(1, "local-4"), agents) == [
        "masterType local-1 (1 vCPU, 2 GB) instead of local-4",
        "agent big, which is silent, comes back",
    ]


def test_nothing_helps_a_job_of_one_small_replica_on_a_machine_full_of_small_jobs_but_an_end() -> None:
    gangs = tuple(held(n, key=n) for n in range(2))
    assert messages(of_types(5, "local-1"), [agent(gangs=gangs)]) == ["the end of job0"]
    assert messages(of_types(5, "local-4", age=1), [agent(cpus=1, gb=1, gangs=(held(0),))]) == []


def test_accelerators_are_kept() -> None:
    machine = ReplicaRequest(Task("master", 0), "n1-standard-8", Resources(8, 30 * 10**9, "NVIDIA_TESLA_T4", 1))
    job = replace(queued(1), gang=(machine,))
    host = agent(cpus=4, gb=16, gpus=("NVIDIA_TESLA_T4",))
    assert messages(job, [host]) == ["masterType n1-standard-4 (4 vCPU, 15 GB) instead of n1-standard-8"]
    assert messages(job, [agent(cpus=4, gb=16)]) == []


def test_end_of_a_job_helps_only_if_nobody_ahead_takes_its_place() -> None:
    ahead = queued(2, cpus=2, age=9)
    host = agent(cpus=2, gangs=(held(0, key=7), held(1, key=8)))
    assert messages(of_types(1, "local-1"), [host], (ahead,)) == []
    resting = replace(ahead, backoff_until=NOW + timedelta(seconds=9))
    assert messages(of_types(1, "local-1"), [host], (resting,)) == ["the end of job7"]
