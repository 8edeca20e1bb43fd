"""The tables of moves, walked exhaustively through the store's guarded moves."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum

import pytest
from sqlalchemy import insert, inspect, update

from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.states import (
    JOB_MOVES,
    REPLICA_MOVES,
    RUN_MOVES,
    IllegalMove,
    JobState,
    Reason,
    ReplicaState,
    RunState,
)
from trainyard_protocol.wire.agents import AgentInfo
from trainyard_protocol.wire.sync import ExitReport
from trainyard_server.domain.lifecycle.decisions import ReplicaChange
from trainyard_server.domain.scheduling.resources import Assignment
from trainyard_server.storage.db.base.models import EventRow, JobRow, ReplicaRow, RunRow, Table
from trainyard_server.storage.db.repository import ConcurrentUpdate, Store, Writer

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
INFO = AgentInfo(
    agent_id="a",
    name="laptop",
    version="0",
    runtime="fake",
    capacity_mode="fit",
    runs_images=False,
    capacity=Capacity(cpus=(0,), memory_bytes=1),
)


@pytest.fixture(scope="module")
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store.at(tmp_path_factory.mktemp("moves"))
    with store.write() as writer:
        writer.save_agent(INFO, "", (), NOW)
        job = JobRow(
            project="p",
            job_id="j",
            state=JobState.QUEUED,
            training_input={},
            gang=[],
            priority=0,
            labels={},
            created_at=NOW,
            queued_at=NOW,
        )
        writer.add_job(job, (TrainingInput(), ()), NOW, ())
        writer.add_run(job, "a", [Assignment("master-replica-0", "local-1", (0,), (), 1)], NOW, "")
    yield store
    store.close()


@pytest.fixture
def store(one_store: Store) -> Store:
    """A job with one run of one replica, all just placed; the events of earlier tests are there as well."""
    with one_store.write() as writer:
        set_state(writer, JobRow, JobState.PREPARING)
        set_state(writer, RunRow, RunState.PREPARING)
        set_state(writer, ReplicaRow, ReplicaState.PENDING)
    return one_store


def set_state(writer: Writer, kind: type[Table], state: StrEnum) -> None:
    """Past every guard, as no code of the server may."""
    writer._session.execute(update(kind).values(state=state))
    writer._session.expire_all()


def events(store: Store) -> list[EventRow]:
    with store.read() as reader:
        return list(reader.events(1))


@pytest.mark.parametrize(("before", "after"), list(itertools.product(JobState, JobState)))
def test_job_moves_only_by_the_table(store: Store, before: JobState, after: JobState) -> None:
    known = len(events(store))
    with store.write() as writer:
        set_state(writer, JobRow, before)
        if after not in JOB_MOVES[before]:
            with pytest.raises(IllegalMove):
                writer.move_job(writer.job_by_key(1), after, NOW)
        else:
            writer.move_job(writer.job_by_key(1), after, NOW, "why")
    legal = after in JOB_MOVES[before]
    with store.read() as reader:
        assert reader.job_by_key(1).state is (after if legal else before)
    new = [(e.kind, e.before, e.after, e.message) for e in events(store)[known:]]
    assert new == ([("job", before, after, "why")] if legal else [])


@pytest.mark.parametrize(("before", "after"), list(itertools.product(RunState, RunState)))
def test_run_moves_only_by_the_table(store: Store, before: RunState, after: RunState) -> None:
    known = len(events(store))
    legal = after in RUN_MOVES[before]
    with store.write() as writer:
        set_state(writer, RunRow, before)
        (run,) = writer.runs(1)
        if legal:
            writer.move_run(run, after, NOW)
        else:
            with pytest.raises(IllegalMove):
                writer.move_run(run, after, NOW)
    with store.read() as reader:
        assert reader.runs(1)[0].state is (after if legal else before)
    new = [(e.kind, e.run, e.before, e.after) for e in events(store)[known:]]
    assert new == ([("run", 1, before, after)] if legal else [])


@pytest.mark.parametrize(
    ("before", "after"),
    [pair for pair in itertools.product(ReplicaState, ReplicaState) if pair[0] != pair[1]],
)
def test_replica_moves_only_by_the_table(store: Store, before: ReplicaState, after: ReplicaState) -> None:
    known = len(events(store))
    legal = after in REPLICA_MOVES[before]
    ended = ExitReport(code=3, reason=Reason.PROGRAM_ERROR, message="m", finished_at=NOW)
    change = ReplicaChange(
        "master-replica-0", before, after, "h:1", NOW, ended if after is ReplicaState.EXITED else None
    )
    with store.write() as writer:
        set_state(writer, ReplicaRow, before)
        (run,) = writer.runs(1)
        if legal:
            writer.change_replica(run, change, NOW)
        else:
            with pytest.raises(IllegalMove):
                writer.change_replica(run, change, NOW)
    with store.read() as reader:
        (replica,) = reader.replicas([reader.runs(1)[0].run_id])
        assert replica.state is (after if legal else before)
        if legal and after is ReplicaState.EXITED:
            assert (replica.exit_code, replica.reason, replica.finished_at) == (3, Reason.PROGRAM_ERROR, NOW)
    assert len(events(store)) == known + legal


def test_write_to_a_state_that_is_not_there_any_more_is_overtaken(store: Store) -> None:
    known = len(events(store))
    with store.read() as reader:
        stale = reader.job_by_key(1)
    with store.write() as writer:
        writer.move_job(writer.job_by_key(1), JobState.RUNNING, NOW)
    with pytest.raises(ConcurrentUpdate), store.write() as writer:
        writer.move_job(stale, JobState.RUNNING, NOW)
    assert len(events(store)) == known + 1


def test_write_that_raises_leaves_nothing(store: Store) -> None:
    known = len(events(store))
    with pytest.raises(IllegalMove), store.write() as writer:  # noqa: PT012 - the first move must be undone
        writer.move_job(writer.job_by_key(1), JobState.RUNNING, NOW)
        writer.move_job(writer.job_by_key(1), JobState.PREPARING, NOW)
    with store.read() as reader:
        assert reader.job_by_key(1).state is JobState.PREPARING
    assert len(events(store)) == known


def test_job_id_is_unique_in_a_project_for_ever(store: Store) -> None:
    with store.read() as reader:
        job = reader.job_by_key(1)
        names = [attribute.key for attribute in inspect(JobRow).column_attrs if attribute.key != "key"]
        values = {name: getattr(job, name) for name in names}
    with pytest.raises(Exception, match="UNIQUE"), store.write() as writer:
        writer._session.execute(insert(JobRow).values(**values))
