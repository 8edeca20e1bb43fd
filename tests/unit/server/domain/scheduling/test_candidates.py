"""Candidates: what a job lacks on each agent."""

from trainyard_server.domain.scheduling.candidates import candidates
from trainyard_server.domain.scheduling.scheduler import NO_QUOTAS
from unit.server.domain.scheduling.queue_support import agent, held, queued


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
