"""No run of a job is ever alive twice, whatever becomes of the agent and of the network."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines import Engine
from integration.fencing_lab import LEASE_S, Worker, Yard, freeze, thaw, until, yard
from trainyard_protocol.states import JobState, Reason, ReplicaState, RunState

pytestmark = pytest.mark.e2e

PACKAGE = {"pythonModule": "program"}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Yard]:
    with yard(tmp_path, ["--runtime", "process"]) as found:
        yield found


def lose(yard: Yard, trouble: Callable[[Worker], object]) -> Worker:
    """Trouble comes over the worker that has the run; the run is lost and starts on the other one. That worker."""
    home = yard.home()
    trouble(home)
    unknown = False
    while len(yard.lives()) == 1:
        detail = yard.detail()
        unknown |= any(r.state is ReplicaState.UNKNOWN for run in detail.runs for r in run.replicas)
        assert detail.state in (JobState.RUNNING, JobState.PREPARING, JobState.QUEUED)
        time.sleep(0.1)
    assert unknown
    return home


def assert_that_it_went_well(yard: Yard, home: Worker) -> None:
    """The old worker can be reached again: it has nothing to say about a run that is over."""
    until(lambda: not home.holds_a_run, "the lost run to be forgotten")
    yard.finish()
    until(lambda: yard.detail().state is JobState.SUCCEEDED, "the job's success")
    detail = yard.detail()
    assert [run.state for run in detail.runs] == [RunState.ENDED, RunState.ENDED]
    assert [run.verdict.reason for run in detail.runs if run.verdict] == [Reason.HOST_LOST, Reason.COMPLETED]
    assert detail.runs[0].agent != detail.runs[1].agent
    first, second = yard.lives()
    assert first.began < first.ended < second.began < second.ended


def test_agent_that_is_cut_off_stops_its_replicas_before_they_start_elsewhere(processes: Yard) -> None:
    processes.submit(**PACKAGE)
    home = lose(processes, lambda worker: worker.network.cut())
    assert home.agent.poll() is None
    assert home.fence_said() == ""  # the agent did it itself
    home.network.heal()
    assert_that_it_went_well(processes, home)


def test_agent_that_was_killed_leaves_a_fence_that_stops_its_replicas(processes: Yard) -> None:
    processes.submit(**PACKAGE)
    home = lose(processes, Worker.kill)
    assert "stopped its replicas" in home.fence_said()
    assert "killed the agent" not in home.fence_said()
    home.start()
    assert_that_it_went_well(processes, home)


def test_agent_that_was_frozen_never_wakes_up_to_replicas_that_live_elsewhere(processes: Yard) -> None:
    processes.submit(**PACKAGE)
    home = lose(processes, freeze)
    thaw(home)
    assert home.agent.wait(60) == -9
    assert "killed the agent" in home.fence_said()
    home.start()
    assert_that_it_went_well(processes, home)


def test_agent_that_was_frozen_for_less_than_its_lease_goes_on(processes: Yard) -> None:
    processes.submit(**PACKAGE)
    home = processes.home()
    freeze(home)
    time.sleep(LEASE_S / 10)
    thaw(home)
    reached = processes.lives()[0].ended + LEASE_S
    until(lambda: processes.lives()[0].ended > reached, "a lease's length of training")
    assert home.agent.poll() is None
    assert home.fence_said() == ""
    processes.finish()
    until(lambda: processes.detail().state is JobState.SUCCEEDED, "the job's success")
    assert len(processes.detail().runs) == 1


@pytest.mark.parametrize("trouble", ["killed", "frozen"])
def test_containers_of_an_agent_that_does_nothing_are_stopped_by_its_fence(
    engine: Engine, tmp_path: Path, trouble: str
) -> None:
    flags = ["--runtime", "docker", "--job-dir-root", str(tmp_path)]
    with yard(tmp_path, flags, engine.environment) as found:
        program = (tmp_path / "modules" / "program.py").read_text()
        image = {"imageUri": engine.base_image, "containerCommand": ["python3", "-c", program]}
        found.submit(masterConfig=image)
        home = lose(found, Worker.kill if trouble == "killed" else freeze)
        assert "stopped its replicas" in home.fence_said()
        home.agent.wait(60)
        home.start()
        assert_that_it_went_well(found, home)
        until(lambda: not engine.leftovers(), "the agents to remove what is over")
