"""Comparison of the rows in a server's memory with those of its database."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import inspect, select

from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.db.base.columns import Table
from trainyard_server.storage.db.base.models import EventRow, JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.queries.reader import LIVE_RUNS
from trainyard_server.storage.db.store import Store


def differences(store: Store) -> list[str]:
    """The values that a fresh load of the database would have otherwise than the memory; nothing waits for a commit."""
    live = store._live
    with store.read() as reader:
        session = reader.session
        found: list[str] = []
        jobs = [live.jobs[key] for key in sorted(live.jobs)]
        keys = list(live.jobs)
        found += _between(
            [job.row for job in jobs], session.scalars(_of(JobRow, JobRow.key, keys).order_by(JobRow.key))
        )
        runs = sorted((run for job in jobs for run in job.runs), key=lambda run: run.run_id)
        found += _between(runs, session.scalars(_of(RunRow, RunRow.job_key, keys).order_by(RunRow.run_id)))
        replicas = [replica for job in jobs for run in job.runs for replica in job.replicas[run.run_id]]
        stored = session.scalars(_of(ReplicaRow, ReplicaRow.run_id, [run.run_id for run in runs]))
        found += _between(sorted(replicas, key=_place), sorted(stored, key=_place))
        events: dict[int, list[EventRow]] = {key: [] for key in keys}
        for event in session.scalars(_of(EventRow, EventRow.job_key, keys).order_by(EventRow.number)):
            events[event.job_key].append(event)
        for key, job in live.jobs.items():
            if job.last_event not in (None, len(events[key])):
                found.append(f"job {key}: {job.last_event} events, {len(events[key])} stored")
            lines = [event.message for event in events[key] if event.message]
            if job.lines is not None and [line.message for line in job.lines] != lines:
                found.append(f"job {key}: lines {job.lines}, stored {lines}")
        if live.agents is not None:
            found += _between(_by_id(live.agents.values()), _by_id(session.scalars(select(AgentRow))))
            query = select(RunRow.agent_id, RunRow.job_key).where(RunRow.state.in_(LIVE_RUNS))
            stored_on = {(agent_id, key) for agent_id, key in session.execute(query)}
            on_agent = {(agent_id, key) for agent_id, keys in live.on_agent.items() for key in keys}
            found += [f"live runs {on_agent}, stored {stored_on}"] * (on_agent != stored_on)
        return found


def _of(table: type[Table], column: Any, values: list[Any]) -> Any:
    return select(table).where(column.in_(values))


def _place(replica: ReplicaRow) -> tuple[str, int]:
    return replica.run_id, replica.position


def _by_id(rows: Any) -> list[AgentRow]:
    return sorted(rows, key=lambda row: str(row.agent_id))


def _between(rows: list[Any], given: Any) -> Iterator[str]:
    stored = list(given)
    if len(rows) != len(stored):
        yield f"{len(rows)} rows, {len(stored)} stored: {rows} {stored}"
        return
    names = _names(type(stored[0])) if stored else []
    for mine, theirs in zip(rows, stored, strict=True):
        for name in names:
            value = mine.__dict__.get(name)
            if value != getattr(theirs, name):
                there = inspect(theirs).identity, name
                yield f"{type(mine).__name__} {there}: {str(value)[:200]!r}, {str(getattr(theirs, name))[:200]!r}"


def _names(table: type[Table]) -> list[str]:
    """The attributes but `changed`, which one process alone does not write, and those that are read apart."""
    attributes = table.__mapper__.column_attrs
    return [attribute.key for attribute in attributes if attribute.key != "changed" and not attribute.deferred]
