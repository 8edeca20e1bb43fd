"""No run of a job is ever alive twice, whatever happens to the agent and the network."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from beds.engines import Engine
from beds.waiting import until
from integration.fencing.fencing_lab import Cluster, Worker, cluster, freeze, thaw
from trainyard_protocol.states import JobState, Reason, ReplicaState, RunState

pytestmark = pytest.mark.e2e

PACKAGE = {"pythonModule": "program"}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, ["--runtime", "process", "--one-user"]) as one:
        yield one


def lose_run(cluster: Cluster, failure: Callable[[Worker], object]) -> Worker:
    """Let the worker with the run fail, and wait until the run starts on the other one. Returns the failed worker."""
    holder = cluster.holder()
    until(lambda: holder.has_lease, "its lease: a server that hears of one worker alone gives none")
    failure(holder)
    seen: set[ReplicaState] = set()

    def starts_again() -> bool:
        detail = cluster.detail()
        assert detail.state in (JobState.RUNNING, JobState.PREPARING, JobState.QUEUED)
        seen.update(replica.state for run in detail.runs for replica in run.replicas)
        return len(cluster.lives()) > 1

    until(starts_again, "the run on the other worker")
    assert ReplicaState.UNKNOWN in seen
    return holder


def assert_recovered(cluster: Cluster, holder: Worker) -> None:
    """The old worker can be reached again, and reports nothing about the ended run."""
    until(lambda: not holder.holds_a_run, "the lost run to be forgotten")
    cluster.finish()
    until(lambda: cluster.detail().state is JobState.SUCCEEDED, "the job's success")
    detail = cluster.detail()
    assert [run.state for run in detail.runs] == [RunState.ENDED, RunState.ENDED]
    assert [run.verdict.reason for run in detail.runs if run.verdict] == [Reason.HOST_LOST, Reason.COMPLETED]
    assert detail.runs[0].agent != detail.runs[1].agent
    first, second = cluster.lives()
    assert first.began < first.ended < second.began < second.ended


def test_agent_that_is_cut_off_stops_its_replicas_before_they_start_elsewhere(processes: Cluster) -> None:
    processes.submit(**PACKAGE)
    holder = lose_run(processes, lambda worker: worker.network.cut())
    assert holder.agent.poll() is None
    assert holder.watchdog_log() == ""  # the agent did it itself
    holder.network.heal()
    assert_recovered(processes, holder)


def test_agent_that_was_killed_leaves_a_watchdog_that_stops_its_replicas(processes: Cluster) -> None:
    processes.submit(**PACKAGE)
    holder = lose_run(processes, Worker.kill)
    assert "stopped its replicas" in holder.watchdog_log()
    assert "killed the agent" not in holder.watchdog_log()
    holder.start()
    assert_recovered(processes, holder)


def test_agent_that_was_frozen_never_wakes_up_to_replicas_that_live_elsewhere(processes: Cluster) -> None:
    processes.submit(**PACKAGE)
    holder = lose_run(processes, freeze)
    thaw(holder)
    assert holder.agent.wait(60) == -9
    assert "killed the agent" in holder.watchdog_log()
    holder.start()
    assert_recovered(processes, holder)


@pytest.mark.parametrize("failure", ["killed", pytest.param("frozen", marks=pytest.mark.long)])
def test_containers_of_an_agent_that_does_nothing_are_stopped_by_its_watchdog(
    engine: Engine, tmp_path: Path, failure: str
) -> None:
    flags = ["--runtime", "docker", "--one-user", "--job-dir-root", str(tmp_path)]
    with cluster(tmp_path, flags, engine.environment) as one:
        program = (tmp_path / "modules" / "program.py").read_text()
        image = {"imageUri": engine.base_image, "containerCommand": ["python3", "-c", program]}
        one.submit(masterConfig=image)
        holder = lose_run(one, Worker.kill if failure == "killed" else freeze)
        assert "stopped its replicas" in holder.watchdog_log()
        holder.agent.wait(60)
        holder.start()
        assert_recovered(one, holder)
        until(lambda: not engine.remaining(), "the agents to remove what is over")
