"""The tables of moves, walked exhaustively through the store's guarded moves."""

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from sqlalchemy import select

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
from trainyard_server.domain.scheduling.resources import Assignment, Part
from trainyard_server.storage.db.base.columns import Table
from trainyard_server.storage.db.base.models import EventRow, JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.base.statements import ConcurrentUpdate
from trainyard_server.storage.db.repository import Writer
from trainyard_server.storage.db.store import Store

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
        writer.add_run(job, [Part("a", (Assignment("master-replica-0", "local-1", (0,), (), 1),))], NOW, "")
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
    run = writer.runs(1)[0]
    rows: dict[type[Table], tuple[Table, dict[str, Any]]] = {
        JobRow: (writer.job_by_key(1), {"key": 1}),
        RunRow: (run, {"run_id": run.run_id}),
        ReplicaRow: (writer.gang(run)[0], {"run_id": run.run_id, "task": "master-replica-0"}),
    }
    row, guards = rows[kind]
    writer._change(row, row, {"state": state}, **guards)


def events(store: Store) -> list[EventRow]:
    with store.read() as reader:
        return list(reader.events(1))


def move_job(writer: Writer, _before: JobState, after: JobState) -> None:
    writer.move_job(writer.job_by_key(1), after, NOW, "why")


def move_run(writer: Writer, _before: RunState, after: RunState) -> None:
    writer.move_run(writer.runs(1)[0], after, NOW)


def move_replica(writer: Writer, before: ReplicaState, after: ReplicaState) -> None:
    ended = ExitReport(code=3, reason=Reason.PROGRAM_ERROR, message="m", finished_at=NOW)
    report = ended if after is ReplicaState.EXITED else None
    change = ReplicaChange("master-replica-0", before, after, "h:1", NOW, report)
    writer.change_replica(writer.runs(1)[0], change, NOW)


@pytest.mark.parametrize(
    ("kind", "row", "moves", "move"),
    [
        ("job", JobRow, JOB_MOVES, move_job),
        ("run", RunRow, RUN_MOVES, move_run),
        ("replica", ReplicaRow, REPLICA_MOVES, move_replica),
    ],
)
def test_states_move_only_by_the_table(
    store: Store, kind: str, row: type[Table], moves: dict[Any, Any], move: Callable[..., None]
) -> None:
    wrong = []
    for before, after in itertools.product(moves, moves):
        if kind == "replica" and before == after:
            continue  # it may change its address
        known, legal = len(events(store)), after in moves[before]
        with store.write() as writer:
            set_state(writer, row, before)
            if legal:
                move(writer, before, after)
            else:
                with pytest.raises(IllegalMove):
                    move(writer, before, after)
        with store.read() as reader:
            (state,) = reader.session.execute(select(row.__table__.c.state)).one()
        added = [(event.kind, event.before, event.after) for event in events(store)[known:]]
        if (state, added) != ((after, [(kind, before, after)]) if legal else (before, [])):
            wrong.append(f"{before} -> {after}: {state} {added}")
        if kind == "replica" and legal and after is ReplicaState.EXITED:
            with store.read() as reader:
                (replica,) = reader.replicas([reader.runs(1)[0].run_id])
            assert (replica.exit_code, replica.reason, replica.finished_at) == (3, Reason.PROGRAM_ERROR, NOW)
    assert not wrong, "\n".join(wrong)


def test_write_to_a_state_that_is_not_there_any_more_is_overtaken(store: Store) -> None:
    known = len(events(store))
    with store.read() as reader:
        stale = reader.job_by_key(1)
    with store.write() as writer:
        writer.move_job(writer.job_by_key(1), JobState.RUNNING, NOW)
    with pytest.raises(ConcurrentUpdate), store.write() as writer:
        writer.move_job(stale, JobState.RUNNING, NOW)
    assert len(events(store)) == known + 1
