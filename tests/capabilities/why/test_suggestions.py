"""Suggestions for a waiting job: each change really starts it, and the smallest of its kind."""

from dataclasses import replace
from datetime import timedelta

from trainyard_protocol.job.cluster import Task
from trainyard_protocol.job.machines import ReplicaRequest, Resources, default_catalog
from trainyard_server.capabilities.why.suggestions import Situation, suggestions
from trainyard_server.domain.scheduling.candidates import candidates
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.scheduling.scheduler import NO_QUOTAS
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


def test_end_of_a_job_helps_only_if_nobody_ahead_takes_its_place() -> None:
    ahead = queued(2, cpus=2, age=9)
    host = agent(cpus=2, gangs=(held(0, key=7), held(1, key=8)))
    assert messages(of_types(1, "local-1"), [host], (ahead,)) == []
    resting = replace(ahead, backoff_until=NOW + timedelta(seconds=9))
    assert messages(of_types(1, "local-1"), [host], (resting,)) == ["the end of job7"]


def test_agent_that_is_too_small_is_told_what_the_whole_machine_lacks() -> None:
    agents = [
        agent("busy", cpus=8, gpus=("NVIDIA_TESLA_T4",) * 2, gangs=(held(*range(7), gpus=("busy-0",)),)),
        agent("no_gpu", cpus=16),
        agent("one_gpu", cpus=16, gpus=("NVIDIA_TESLA_T4",)),
        agent("tiny", cpus=1, gb=1),
    ]
    views = candidates(queued(1, 2, cpus=2, gpus=1), agents, NO_QUOTAS)
    assert {view.agent: view.lacks for view in views} == {
        "busy": "lacks 3 vCPU, 1 x NVIDIA_TESLA_T4",
        "no_gpu": "has no NVIDIA_TESLA_T4",
        "one_gpu": "has only 1 of 2 x NVIDIA_TESLA_T4",
        "tiny": "has only 1 of 4 vCPU, only 1.0 of 4.0 GB, no NVIDIA_TESLA_T4",
    }
