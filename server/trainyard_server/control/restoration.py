"""The runs and agents of a restored backup, which may be no more.

A restored database names agents and runs as they were. An agent that calls again says which of these runs it has: they
go on, and the others are lost. One that does not call is gone with its runs: at once where it was the only one, since
an operator restores what has ended; after its lease where other agents could run its jobs all the time. Until all that
can call have called and have stopped what this server does not know, nothing starts: it may run there.
"""

import fcntl
import logging
import os
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import BinaryIO

from trainyard_protocol.answers.stored.backups import RESTORED_MARK, RestoredMark
from trainyard_protocol.wire.agents import CLUSTER
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import live_runs, run_snapshot
from trainyard_server.domain.lifecycle import decisions
from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Event, Writer
from trainyard_server.storage.events.notifier import AGENTS_TOPIC, agent_topic

CALLS_AGAIN_S = 10.0
"""An agent that reaches the server calls again within this time: it pauses for 3 s, and waits 5 s for a connection."""

logger = logging.getLogger(__name__)


class Restoration:
    """The server's part in a restore: until it knows what runs, nothing starts."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._of: datetime | None = None
        self._held_since: float | None = None

    def begin(self) -> None:
        """Take over a data directory that was restored, before anything else is done. Raises OSError."""
        path = self._backend.settings.data_dir / RESTORED_MARK
        if self._backend.settings.rehearsal or not path.is_file():
            return
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # for one server process at a time
            mark = RestoredMark.model_validate_json(file.read())
            if not mark.is_noted:
                self._note(mark.of)
                _overwrite(file, mark.model_copy(update={"is_noted": True}))
        self._of, self._held_since = mark.of, self._backend.agent_liveness.stopwatch()
        logger.warning(
            "The service was restored from a backup of %s: nothing starts for %g s, or while agents end other runs.",
            _minute(mark.of),
            CALLS_AGAIN_S,
        )

    def _note(self, of: datetime) -> None:
        """Record of every agent that what is known of it is of then, and tell the jobs that ran."""
        now = self._backend.clock()
        silent_since = now - timedelta(seconds=2 * self._backend.settings.silent_after_s)
        with self._backend.store.write() as writer:
            for agent in writer.agents():
                writer.mark_restored(agent, min(agent.last_seen, silent_since))
                for run, _ in live_runs(writer, agent.agent_id):
                    if run.part_of is None and run.beside is None:
                        notice = (
                            f"The service was restored from a backup of {_minute(of)}: run {run.number} continues if "
                            "its agent still has it; otherwise a new run starts."
                        )
                        writer.add_event(run.job_key, Event("restored", notice, run.number), now)

    def called(self, writer: Writer, agent: AgentRow, has: Collection[str], now: datetime) -> set[int]:
        """Record that an agent of the backup is back, and has these runs. Returns the jobs of those that it has not."""
        writer.unmark_restored(agent)
        return self._lose(writer, agent, "its agent {} does not have it any more", has, now)

    def lose_runs(self, writer: Writer, agent: AgentRow, now: datetime) -> set[int]:
        """End the runs of an agent that is gone. Returns their jobs."""
        return self._lose(writer, agent, "its agent {} has not called since", (), now)

    def step(self, now: datetime) -> set[int]:
        """Forget the agents that are gone. Returns the jobs of their runs."""
        if self._of is None:
            return set()
        with self._backend.store.read() as reader:
            waiting = [agent for agent in reader.restored_agents() if agent.info.get("kind") != CLUSTER]
            gone = [agent.agent_id for agent in waiting if self._is_gone(reader, agent)]
        touched = set[int]()
        for agent_id in gone:
            touched |= self._forget(agent_id, now)
        if not waiting and not self.is_holding():
            (self._backend.settings.data_dir / RESTORED_MARK).unlink(missing_ok=True)
            self._of = None
        return touched

    def is_holding(self) -> bool:
        """Whether nothing may start yet."""
        if self._held_since is None:
            return False
        if self._backend.agent_liveness.stopwatch() - self._held_since <= CALLS_AGAIN_S:
            return True
        with self._backend.store.read() as reader:
            for agent in reader.agents():
                if agent.orphaned_runs and not agent.restored and self._backend.agent_liveness.is_alive(agent):
                    return True  # it is stopping runs that are not live
        self._held_since = None
        return False

    def _is_gone(self, reader: Reader, agent: AgentRow) -> bool:
        """Whether an agent that has not called runs nothing any more. Its lease may have become longer since the
        backup, or, unless this service has long leases alone, one by a majority of any agents that others can ask."""
        silent_s = self._backend.agent_liveness.silent_s(agent)
        if agent.lease_s is None:
            return silent_s > CALLS_AGAIN_S
        assert self._of is not None
        lists = list(agent.member_lists)
        if not self._backend.settings.long_leases:
            asked = [row for row in reader.agents() if row.first_seen <= self._of and row.info.get("peer_address")]
            lists.append([row.agent_id for row in asked])
        lease_s = max(agent.lease_s, self._backend.settings.lease_s)
        return silent_s > self._backend.membership.lease_ends_s(agent.agent_id, lease_s, lists)

    def _forget(self, agent_id: str, now: datetime) -> set[int]:
        """Forget an agent with its runs; should it call after all, it is let in again."""
        with self._backend.store.write() as writer:
            agent = writer.agent(agent_id)
            if agent is None or not agent.restored or agent.removed_at is not None:
                return set()  # it has called
            touched = self.lose_runs(writer, agent, now)
            writer.remove_agent(agent, now, may_return=True)
        self._backend.notifier.publish(AGENTS_TOPIC, agent_topic(agent_id))
        return touched

    def _lose(self, writer: Writer, agent: AgentRow, why: str, has: Collection[str], now: datetime) -> set[int]:
        """End the live runs of an agent, but for those that it has."""
        message = f"The service was restored from a backup, and {why.format(agent.info['name'])}."
        touched = set[int]()
        for run, replicas in live_runs(writer, agent.agent_id):
            if run.run_id in has:
                continue
            for change in decisions.restored_without(run_snapshot(run, replicas), message, now):
                writer.change_replica(run, change, now)
            for replica in replicas:
                if not replica.log_complete:  # if its agent has it after all, it sends what is missing
                    text = f"The log of {replica.task} may lack its end: the service was restored from a backup."
                    writer.complete_log(run, replica.task, now, Event("log-damaged", text, run.number, replica.task))
            touched.add(run.job_key)
        return touched


def _overwrite(file: BinaryIO, mark: RestoredMark) -> None:
    """Write in place, under the lock that the file has."""
    file.seek(0)
    file.write(mark.model_dump_json().encode())
    file.truncate()
    file.flush()
    os.fsync(file.fileno())


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
