"""Counts for a monitoring system, each by one query."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import func, select, text

from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries.reader import Reader


class MonitoredAgent(NamedTuple):
    """An agent, with the heartbeat by which its silence is measured."""

    agent_id: str
    heartbeats: int
    last_seen: datetime
    draining: bool
    name: str


def agents(reader: Reader) -> Sequence[MonitoredAgent]:
    """The agents that are not removed, by name."""
    columns = (AgentRow.agent_id, AgentRow.heartbeats, AgentRow.last_seen, AgentRow.draining, AgentRow.info)
    rows = reader.session.execute(select(*columns).where(AgentRow.removed_at.is_(None)))
    agents = [
        MonitoredAgent(agent_id, heartbeats, last_seen, draining, str(info["name"]))
        for agent_id, heartbeats, last_seen, draining, info in rows
    ]
    return sorted(agents, key=lambda agent: agent.name)


def jobs_by_state(reader: Reader) -> Sequence[tuple[str, str, int]]:
    """The number of jobs of each project in each state."""
    group = (JobRow.project, JobRow.state)
    rows = reader.session.execute(select(*group, func.count()).group_by(*group))
    return [(project, str(state), count) for project, state, count in rows]


def database_bytes(reader: Reader) -> int:
    """The size of the database's pages, or of all files of a PostgreSQL database."""
    if reader.session.get_bind().dialect.name == "postgresql":
        return int(reader.session.scalar(text("SELECT pg_database_size(current_database())")) or 0)
    pages, size = (reader.session.scalar(text(f"PRAGMA {name}")) or 0 for name in ("page_count", "page_size"))
    return int(pages) * int(size)
