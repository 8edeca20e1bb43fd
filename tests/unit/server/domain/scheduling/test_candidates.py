"""Candidates: what a job lacks on each agent."""

from dataclasses import replace

from trainyard_server.domain.scheduling.candidates import candidates
from trainyard_server.domain.scheduling.scheduler import NO_QUOTAS, plan
from unit.server.domain.scheduling.queue_support import NOW, agent, held, only, queued


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


def test_agents_that_could_hold_a_gang_only_together_are_named() -> None:
    """A chief and three workers of 2 vCPU and 8 GB on machines of 4 vCPU and 16 GB."""
    gang = queued(1, 4, cpus=2, gb=8)
    strict = [agent("host-a", 4, 16), agent("host-b", 4, 16), agent("tiny", 1, 1)]
    assert plan([gang], strict, NOW).waiting[1].reason == (
        "can never start on the agents here: needs 8 vCPU and 32.0 GB; the largest agent, host-a, has 4 vCPU and "
        "16.0 GB; host-a and host-b together have room for it, but host-a and host-b have no address for others "
        "(--address)"
    )
    assert "together" not in plan([gang], [agent("host-a", 4, 16), agent("host-b", 4, 8)], NOW).waiting[1].reason
    fit = [agent(name, 4, 16, mode="fit") for name in ("host-a", "host-b")]
    scaled = only(plan([gang], fit, NOW)).scaled
    several = (
        "host-a and host-b together have room for it, but host-a and host-b have no address for others (--address)"
    )
    assert scaled.endswith(f"gets 1 vCPU and 4.0 GB. {several}.")
    larger = only(plan([gang], [*fit[:1], agent("tiny", 1, 1, mode="fit")], NOW))
    assert larger.agent_id == "host-a", "the machine on which it is scaled down least"
    assert larger.scaled.endswith("GB. tiny is idle, but a gang is scaled down to one agent.")
    busy = [replace(fit[0], gangs=(held(0),)), agent("tiny", 1, 1, mode="fit")]
    assert plan([gang], busy, NOW).waiting[1].kind == "room", "it waits for the larger one"
    alone = only(plan([gang], [fit[0], replace(fit[1], draining=True)], NOW)).scaled
    assert alone.endswith("gets 1 vCPU and 4.0 GB.")


def test_draining_agent_starts_nothing_and_says_why() -> None:
    drained = agent("host-a", draining=True)
    waits = plan([queued(1)], [drained], NOW).waiting[1]
    assert (waits.kind, waits.reason) == (
        "no-agent",
        "waits for agent host-a, which an operator lets start nothing new",
    )
    assert (
        "host-b, which is silent" in plan([queued(1)], [drained, agent("host-b", alive=False)], NOW).waiting[1].reason
    )
    assert candidates(queued(1), [drained], NO_QUOTAS)[0].lacks.startswith("draining: an operator")
    assert only(plan([queued(1)], [drained, agent("host-b")], NOW)).agent_id == "host-b"
