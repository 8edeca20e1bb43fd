from trainyard_agent.control.start_deadline import StartDeadline
from trainyard_agent.runtimes.installing import activity
from trainyard_protocol.states import ReplicaState
from trainyard_protocol.wire.sync import ReplicaReport

CHIEF, WORKER = "master-replica-0", "worker-replica-0"
RUN = "r"


def gang(waits: str, chief: ReplicaState = ReplicaState.RUNNING) -> dict[str, tuple[ReplicaReport, ...]]:
    return {
        RUN: (
            ReplicaReport(task=CHIEF, state=chief),
            ReplicaReport(task=WORKER, state=ReplicaState.STARTING, waits=waits),
        )
    }


def test_run_is_overdue_once_nothing_new_was_said_for_so_long() -> None:
    deadline = StartDeadline(600)
    assert not deadline.overdue(gang("pulling image"), 0)
    assert not deadline.overdue(gang("back-off pulling image"), 500)
    assert not deadline.overdue(gang("pulling image"), 900)
    assert deadline.overdue(gang("back-off pulling image"), 1100) == {
        RUN: f"{WORKER} was not started for 600 s: back-off pulling image."
    }
    deadline.give_back(RUN, "given back")
    assert not deadline.overdue(gang("pulling image"), 1200)


def test_partial_gang_is_given_back_while_others_come_and_go_in_its_cluster() -> None:
    """The replicas that run hold their room, and change nothing."""
    deadline = StartDeadline(600)
    for now in range(0, 600, 10):
        assert not deadline.overdue(gang(f"0/900 nodes are available: {now} Insufficient cpu."), now)
    assert deadline.overdue(gang("0/901 nodes are available: 7 Insufficient cpu."), 600)


def test_installation_has_its_own_limit() -> None:
    deadline = StartDeadline(600)
    assert not deadline.overdue(gang(activity(["trainer-1.tar.gz"])), 0)
    assert not deadline.overdue(gang(activity(["trainer-1.tar.gz"])), 1700)


def test_replica_that_starts_is_progress_and_a_run_that_says_nothing_is_never_overdue() -> None:
    deadline = StartDeadline(600)
    assert not deadline.overdue(gang("no room", chief=ReplicaState.STARTING), 0)
    assert not deadline.overdue(gang("no room"), 500)
    assert not deadline.overdue(gang("no room"), 1000)
    assert not deadline.overdue(gang(""), 1099)
    assert not deadline.overdue(gang("no room"), 1100)
    assert deadline.overdue(gang("no room"), 1700)


def test_run_in_a_queue_of_its_engine_may_wait_there() -> None:
    deadline = StartDeadline(600)
    waiting = ReplicaReport(task=CHIEF, state=ReplicaState.PENDING, waits="in the LocalQueue team-a: full")
    assert not deadline.overdue({RUN: (waiting,)}, 0)
    assert not deadline.overdue({RUN: (waiting,)}, 10_000)
    admitted = waiting.model_copy(update={"state": ReplicaState.STARTING, "waits": "no room"})
    assert not deadline.overdue({RUN: (admitted,)}, 10_001)
    assert deadline.overdue({RUN: (admitted,)}, 10_601)
