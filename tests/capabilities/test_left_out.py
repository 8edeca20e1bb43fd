"""The server without one of its capabilities, each in turn: it starts, answers, and runs a job."""

from pathlib import Path

import pytest

from beds.world import World
from trainyard_agent.engines.fake import Exit, Print, Script, by_module
from trainyard_protocol.states import JobState
from trainyard_server.capabilities.registry import CAPABILITIES

PAGES = ("/", "/cluster", "/projects/p/jobs/j", "/projects/p/jobs/j/logs", "/projects/p/jobs/j/metrics")


@pytest.mark.parametrize("left_out", [capability.name for capability in CAPABILITIES])
async def test_server_without_it_runs_a_job(left_out: str, tmp_path: Path) -> None:
    others = [capability for capability in CAPABILITIES if capability.name != left_out]
    world = World(tmp_path, capabilities=others)
    assert (await world.call("GET", "/healthz")).status_code == 200
    world.machine("box", by_module({"prog.task": {"*": Script(((0.0, Print("step=1 loss=0.5")), (1.0, Exit(0))))}}))
    await world.begin("j")
    world.clock.advance(2)
    await world.settle(6)
    assert (await world.detail("j")).state is JobState.SUCCEEDED
    assert "step=1 loss=0.5" in [entry.text for entry in await world.log("j")]
    for page in PAGES:
        answer = await world.call("GET", page)
        assert (answer.status_code, "j" in answer.text) == (200, True), (page, answer.text)
    answer = await world.call("DELETE", "/trainyard/v1/projects/p/jobs/j")
    assert answer.status_code == 200, answer.text
    await world.close()


async def test_page_of_a_capability_that_is_left_out_has_no_link(tmp_path: Path) -> None:
    world = World(tmp_path, capabilities=())
    text = (await world.call("GET", "/")).text
    assert [path for path in ("/new", "/usage", "/compare", "/notifications") if f'"{path}' in text] == []
    await world.close()
