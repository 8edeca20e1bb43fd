"""Runs are prepared by the stager of their runtime, and leave nothing in another one."""

from trainyard_agent.runtimes.runtime_set import Choice, Choices
from trainyard_agent.staging.base import ReadyAtOnce, Staging
from trainyard_agent.staging.stager_set import StagerSet
from unit.agent.stub_server import run_order

RUN = "1" * 32


async def test_run_is_prepared_once_by_the_stager_that_was_chosen_first() -> None:
    choice = [Choice("process", "it is a package job")]
    choices = Choices(lambda _: choice[0])
    processes, containers = ReadyAtOnce("venv"), ReadyAtOnce()
    stagers = StagerSet({"process": processes, "docker": containers}, choices)

    stagers.begin(run_order(RUN))
    choice[0] = Choice("docker", "its image was built meanwhile")
    stagers.begin(run_order(RUN))

    ready = Staging("ready", python="venv", runtime="process", runtime_reason="it is a package job")
    assert stagers.status() == {RUN: ready}
    assert containers.status() == {}
    assert choices.of(run_order(RUN)) == Choice("process", "it is a package job")

    await stagers.discard(RUN)
    stagers.begin(run_order(RUN))
    assert stagers.status()[RUN].runtime == "docker"
