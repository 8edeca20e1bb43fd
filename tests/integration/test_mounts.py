"""Mounts from the operator's file to a replica: where a job waits, where it starts, and what `explain` says."""

from pathlib import Path

import pytest

from beds.world import World
from trainyard_agent.engines.docker.probe import EngineState
from trainyard_agent.engines.fake import FOREVER, by_module
from trainyard_agent.staging.mounts import AgentMounts
from trainyard_protocol.job.mounts import load_mounts
from trainyard_protocol.states import JobState
from trainyard_server.services.views.cluster import agent_lines

PROGRAMS = by_module({"forever.task": {"*": FOREVER}})
MOUNTS = [{"name": "imagenet", "path": "/data"}, {"name": "scratch"}]


@pytest.fixture
def mounts(tmp_path: Path) -> AgentMounts:
    for name in ("imagenet", "scratch", "caches"):
        (tmp_path / name).mkdir()
    file = tmp_path / "mounts.yaml"
    file.write_text(
        f"mounts:\n- {{name: imagenet, path: {tmp_path}/imagenet, projects: [p]}}\n"
        f"- {{name: scratch, path: {tmp_path}/scratch, readOnly: false}}\ncaches: {{path: {tmp_path}/caches}}\n"
    )
    return AgentMounts(load_mounts(file))


async def test_job_waits_for_an_agent_with_its_mounts_and_explain_shows_them(
    world: World, mounts: AgentMounts, tmp_path: Path
) -> None:
    world.machine("plain", PROGRAMS)
    await world.settle()
    await world.begin("j", module="forever.task", mounts=MOUNTS, env={"HF_HOME": "/mine"})
    answer = await world.call("GET", "/trainyard/v1/projects/p/jobs/j/why")
    assert "no agent has the mount imagenet (`--mounts` of the agent)" in answer.text
    assert "Nothing short of an agent that has its mounts for its project" in answer.text

    data = world.machine("data", PROGRAMS, engine=EngineState(problem="no Docker engine answers"))
    data.mounts = mounts
    data.boot()
    await world.settle()
    ((_, launch),) = data.host.launches
    assert [(mount.name, mount.source, mount.read_only) for mount in launch.mounts] == [
        ("imagenet", f"{tmp_path}/imagenet", True),
        ("scratch", f"{tmp_path}/scratch", False),
        ("cache", f"{tmp_path}/caches/p", False),
    ]
    explained = (await world.call("GET", "/trainyard/v1/projects/p/jobs/j/explain")).json()
    assert [(mount["name"], mount["path"], mount["read_only"]) for mount in explained["mounts"]] == [
        ("imagenet", ".../mounts/imagenet", True),
        ("scratch", ".../mounts/scratch", False),
        ("cache", ".../mounts/cache", False),
    ]
    variables = explained["environment"]
    assert variables["TRAINYARD_MOUNT_SCRATCH"] == ".../mounts/scratch"
    assert variables["TORCH_HOME"] == ".../mounts/cache/torch"
    assert variables["HF_HOME"] == launch.environment["HF_HOME"] == "/mine"


async def test_agents_are_listed_with_their_mounts_and_no_project_of_others(world: World, mounts: AgentMounts) -> None:
    world.machine("data", PROGRAMS).mounts = mounts
    await world.settle()
    with world.app.state.use_cases.backend.store.read() as reader:
        views = {
            seen: agent_lines(reader, world.app.state.use_cases.backend, seen)[0].view.mounts
            for seen in (None, frozenset({"p"}), frozenset({"q"}))
        }
    assert [mount.model_dump() for mount in views[None]] == [
        {"name": "imagenet", "read_only": True, "projects": ("p",)},
        {"name": "scratch", "read_only": False, "projects": ()},
    ]
    assert views[frozenset({"p"})] == views[None]
    assert [mount.name for mount in views[frozenset({"q"})]] == ["scratch"]


async def test_agent_that_has_the_mount_no_more_gives_the_run_back(world: World, mounts: AgentMounts) -> None:
    """Whatever the server believes: here it has not heard of the agent's new file yet."""
    data = world.machine("data", PROGRAMS)
    data.info = data.info.model_copy(update={"mounts": mounts.offers})
    await world.settle()
    data.offered = lambda: data.info  # type: ignore[method-assign]
    data.boot()
    await world.settle()
    await world.begin("j", module="forever.task", mounts=MOUNTS)
    assert not data.host.launches
    detail = await world.detail("j")
    assert detail.state is JobState.QUEUED
    (run,) = detail.runs
    assert run.replicas[0].message.startswith("The agent has no mount imagenet (--mounts).")
