"""Mounts decide where a job may start, and why it waits."""

from dataclasses import replace

from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.wire.agents import MountOffer
from trainyard_server.domain.scheduling.scheduler import plan
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
