"""Mounts decide where a job may start, and why it waits."""

from dataclasses import replace

from trainyard_protocol.job.training_input import parse_training_input
from trainyard_protocol.wire.agents import MountOffer
from trainyard_server.domain.scheduling.candidates import candidates
from trainyard_server.domain.scheduling.scheduler import NO_QUOTAS, plan
from trainyard_server.domain.snapshots import JobSnapshot
from unit.server.domain.scheduling.queue_support import NOW, agent, only, placed, queued

IMAGENET, SCANS = MountOffer(name="imagenet"), MountOffer(name="scans", projects=("radiology",))


def mounting(key: int, *names: str, replicas: int = 1, **given: object) -> JobSnapshot:
    mounts = parse_training_input({"mounts": [{"name": name} for name in names]})
    return replace(queued(key, replicas, **given), training_input=mounts)  # type: ignore[arg-type]


def test_job_starts_where_every_mount_is_for_its_project() -> None:
    agents = [agent("none"), agent("some", mounts=(IMAGENET,)), agent("both", cpus=4, mounts=(IMAGENET, SCANS))]
    assert only(plan([mounting(1, "imagenet")], agents, NOW)).agent_id == "some"
    assert only(plan([mounting(1, "imagenet", "scans", project="radiology")], agents, NOW)).agent_id == "both"
    assert only(plan([queued(1)], agents, NOW)).agent_id == "none"


def test_job_that_no_agent_can_give_its_mounts_waits_and_delays_nobody() -> None:
    agents = [agent("a", mounts=(IMAGENET,)), agent("b", mounts=(SCANS,))]
    waits = {
        ("images",): "no agent has the mount images (`--mounts` of the agent)",
        ("scans",): "the mount scans is not for the project p (`projects` in the agent's file of mounts)",
    }
    for names, reason in waits.items():
        result = plan([mounting(1, *names), queued(2, age=-1)], agents, NOW)
        assert (result.waiting[1].kind, result.waiting[1].reason, placed(result)) == ("no-mount", reason, [2])
    apart = plan([mounting(1, "imagenet", "scans", project="radiology")], agents, NOW).waiting[1]
    assert apart.reason == "no agent has all of its mounts: a has no mount scans; b has no mount imagenet"


def test_agent_with_the_mount_that_is_full_small_or_silent_is_waited_for() -> None:
    free, silent = agent("free", cpus=8), agent("silent", mounts=(IMAGENET,), alive=False)
    waiting = plan([mounting(1, "imagenet")], [free, silent], NOW).waiting[1]
    assert (waiting.kind, waiting.reason) == ("no-agent", "waits for agent silent, which is silent at the moment")
    small = plan([mounting(1, "imagenet", cpus=4)], [free, agent("small", mounts=(IMAGENET,))], NOW).waiting[1]
    assert (small.kind, "the largest agent with its mounts, small, has 2 vCPU" in small.reason) == ("never", True)


def test_each_agent_of_a_gang_has_the_mount() -> None:
    having = [agent(name, mounts=(IMAGENET,), address="10.0.0.1") for name in ("a", "b")]
    other = agent("c", address="10.0.0.1")
    gang = mounting(1, "imagenet", replicas=4)
    placement = only(plan([gang], [other, *having], NOW))
    assert [part.agent_id for part in placement.parts] == ["a", "b"]
    assert plan([gang], [other, having[0]], NOW).waiting[1].kind == "never"


def test_candidates_say_which_mount_is_missing() -> None:
    agents = [agent("a"), agent("b", mounts=(SCANS,)), agent("c", mounts=(MountOffer(name="scans"),))]
    views = candidates(mounting(1, "scans"), agents, NO_QUOTAS)
    assert {view.agent: view.lacks for view in views} == {
        "a": "has no mount scans",
        "b": "has the mount scans for other projects than p",
        "c": "",
    }
