"""Workload: the jobs that have not ended and the agents, in memory. A refresh reads what has changed since the last."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from trainyard_protocol.job.machines import ReplicaRequest
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.control.snapshots import (
    agent_snapshot,
    avoidances,
    gang_of,
    restarts_of,
    run_snapshot,
    snapshot_of,
)
from trainyard_server.domain.lifecycle import decisions
from trainyard_server.domain.scheduling.avoidance import Avoidance
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang
from trainyard_server.domain.snapshots import JobSnapshot, RunSnapshot
from trainyard_server.storage.agent_liveness import AgentLiveness
from trainyard_server.storage.db.base import revisions
from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.db.base.revisions import ChangedJob, WaitingNote
from trainyard_server.storage.db.queries.reader import AgentHeartbeat, Reader, Revision

logger = logging.getLogger(__name__)

_GANGS = 10_000
"""Most different gangs of which equal ones are one object."""


@dataclass(frozen=True, slots=True)
class _HeldGang:
    """The gang of a live run, or of a part of it, on its agent. They sort by the creation of the run."""

    order: tuple[datetime, str]
    agent_id: str
    gang: Gang


@dataclass(slots=True)
class QueueChanges:
    """Changes of the scheduler's input since they were last claimed. `added` jobs are new in the queue; `other`: a
    queued job has changed or is gone, or an agent has changed."""

    added: dict[int, JobSnapshot]
    other: bool


class Workload:
    """Not safe for threads: its owner holds a lock."""

    def __init__(self, liveness: AgentLiveness) -> None:
        self._liveness = liveness
        self.revision: Revision | None = None
        self.jobs: dict[int, JobSnapshot] = {}
        self.queue: dict[int, JobSnapshot] = {}
        self.studies: set[int] = set()
        self.notes: dict[int, WaitingNote] = {}
        self.agents: dict[str, AgentSnapshot] = {}
        self.heartbeats: list[AgentHeartbeat] = []
        self._gangs: dict[int, tuple[_HeldGang, ...]] = {}
        self._on_agent: dict[str, set[int]] = {}
        self._orphans: dict[str, tuple[Gang, ...]] = {}
        self._unreadable: set[int] = set()
        self._interned: dict[tuple[ReplicaRequest, ...], tuple[ReplicaRequest, ...]] = {}
        self._deadlines: dict[int, datetime] = {}
        self._restless: set[int] = set()
        self._unseen: set[int] = set()
        self._changes = QueueChanges({}, other=True)

    @property
    def busy(self) -> set[str]:
        """The agents with live runs."""
        return {agent_id for agent_id, keys in self._on_agent.items() if keys}

    @property
    def unfinished(self) -> set[int]:
        """The keys of all jobs that have not ended, studies among them."""
        return self.jobs.keys() | self.studies

    def refresh(self, reader: Reader) -> None:
        """Read what has changed."""
        revision = revisions.current(reader)
        before = self.revision
        self.heartbeats = list(reader.heartbeats())
        if before is None or before.value != revision.value:
            self._read(reader, None if before is None else before.value)
            own = len(self.jobs) + len(self.studies) + len(self._unreadable)
            if reader.known_revision() is None and revisions.unfinished_count(reader) != own:
                self._read(reader, None)  # a job ended and was deleted between two refreshes
        if before is not None and before.noted != revision.noted:
            self.notes = revisions.waiting_notes(reader)
        for heartbeat in self.heartbeats:
            agent, alive = self.agents.get(heartbeat.agent_id), self._liveness.is_alive(heartbeat)
            if agent is not None and agent.alive != alive:
                self._set_agent(replace(agent, alive=alive))
        self.revision = revision

    def claim_due(self, now: datetime) -> set[int]:
        """The jobs that have changed since the last call, and those that time may move."""
        due = {key for key, at in self._deadlines.items() if at <= now}
        due |= self._unseen | self._restless
        self._unseen = set()
        return due & self.jobs.keys()

    def see_again(self, key: int) -> None:
        """Let the next `claim_due` have the job."""
        self._unseen.add(key)

    def claim_changes(self) -> QueueChanges:
        changes, self._changes = self._changes, QueueChanges({}, other=False)
        return changes

    def noted(self, notes: Iterable[tuple[int, WaitingNote]], revision: Revision | None) -> None:
        """Remember notes that were written in this revision."""
        self.notes.update(notes)
        if revision is not None and self.revision is not None and revision.noted == self.revision.noted + 1:
            self.revision = self.revision._replace(noted=revision.noted)

    def _read(self, reader: Reader, since: int | None) -> None:
        """Read what has changed since a revision, or everything. Without a revision a read that fails is done again as
        a whole."""
        self.revision = None
        changes = None if since is None else revisions.known_changes(reader, since)
        if changes is None and reader.known_revision() is not None:
            since = None  # the rows have no revisions: nobody else writes
        if since is None:
            self._forget()
        if len(self._interned) > _GANGS:
            self._interned.clear()
        touched: set[str] = set()
        if changes is None:
            changed, agents = revisions.changed_jobs(reader, since), revisions.changed_agents(reader, since)
        else:
            changed, agents = changes.jobs, changes.agents
            for key in changes.deleted:
                touched |= self._remove(key)
        restarts = restarts_of(reader, [entry.parts[0][0] for entry in changed if entry.parts])
        avoided = avoidances(reader, (entry.job for entry in changed))
        for entry in changed:
            key = entry.job.key
            touched |= self._replace(reader, entry, restarts.get(key, ()), avoided.get(key))
        for row in agents:
            touched.discard(row.agent_id)
            if row.removed_at is not None:
                self._changes.other |= self.agents.pop(row.agent_id, None) is not None
                continue
            self._orphans[row.agent_id] = _orphans_of(reader, row)
            agent = agent_snapshot(row, (), self._liveness.is_alive(row))
            self._set_agent(replace(agent, gangs=self._gangs_on(agent)))
        for agent in [self.agents[agent_id] for agent_id in touched & self.agents.keys()]:
            self._set_agent(replace(agent, gangs=self._gangs_on(agent)))

    def _forget(self) -> None:
        """Forget everything that was read."""
        maps: tuple[dict[Any, Any], ...] = (self.jobs, self.queue, self._gangs, self._on_agent, self._deadlines)
        for cache in (*maps, self.notes, self.agents, self._orphans, self._interned):
            cache.clear()
        for keys in (self.studies, self._restless, self._unreadable, self._unseen):
            keys.clear()
        self._changes = QueueChanges({}, other=True)

    def _replace(
        self, reader: Reader, changed: ChangedJob, restarts: tuple[RunSnapshot, ...], avoids: Avoidance | None
    ) -> set[str]:
        """Take over a job; the agents on which its gang has changed."""
        key, before = changed.job.key, self._gangs.get(changed.job.key, ())
        was_queued = key in self.queue
        self._remove(key)
        held = tuple(
            _HeldGang((run.created_at, run.run_id), run.agent_id, gang_of(run, replicas, changed.job.project))
            for run, replicas in changed.parts
        )
        if held:
            self._gangs[key] = held
        for part in held:
            self._on_agent.setdefault(part.agent_id, set()).add(key)
        if changed.is_study and changed.job.state not in FINAL_JOB_STATES:
            self.studies.add(key)
        elif changed.job.state not in FINAL_JOB_STATES:
            self._add_unfinished(reader, changed, restarts, avoids)
        is_queued = key in self.queue
        if is_queued and not was_queued:
            self._changes.added[key] = self.queue[key]
        if before == held:
            return set()
        return {part.agent_id for part in (*before, *held)}

    def _remove(self, key: int) -> set[str]:
        """Forget a job; the agents that its gang was on."""
        before = self._gangs.pop(key, ())
        for part in before:
            self._on_agent[part.agent_id].discard(key)
        maps: tuple[dict[int, Any], ...] = (self.jobs, self._deadlines, self.notes)
        for cache in maps:
            cache.pop(key, None)
        for keys in (self.studies, self._restless, self._unreadable, self._unseen):
            keys.discard(key)
        self._changes.added.pop(key, None)
        self._changes.other |= self.queue.pop(key, None) is not None
        return {part.agent_id for part in before}

    def _add_unfinished(
        self, reader: Reader, changed: ChangedJob, restarts: tuple[RunSnapshot, ...], avoids: Avoidance | None
    ) -> None:
        row, key = changed.job, changed.job.key
        try:
            run = None
            if changed.parts:
                gang_replicas = [replica for _, replicas in changed.parts for replica in replicas]
                run = run_snapshot(changed.parts[0][0], sorted(gang_replicas, key=lambda replica: replica.position))
            training_input, gang = reader.job_input(row)
            parsed = (training_input, self._interned.setdefault(gang, gang))
            job = replace(snapshot_of(row, parsed, run, restarts), avoids=avoids)
        except Exception:
            logger.exception("Job %s of %s cannot be read", row.job_id, row.project)
            self._unreadable.add(key)
            return
        self.jobs[key] = job
        self._unseen.add(key)
        if job.state is JobState.QUEUED and not job.is_held:
            self.queue[key] = job
            self.notes[key] = WaitingNote(row.waiting_kind, row.waiting, row.position)
        if (at := decisions.deadline(job)) is not None:
            self._deadlines[key] = at
        if decisions.is_restless(job):
            self._restless.add(key)

    def _gangs_on(self, agent: AgentSnapshot) -> tuple[Gang, ...]:
        keys = self._on_agent.get(agent.agent_id, ())
        parts = (part for key in keys for part in self._gangs[key] if part.agent_id == agent.agent_id)
        held = sorted(parts, key=lambda held_gang: held_gang.order)
        gangs = [*(held_gang.gang for held_gang in held), *self._orphans.get(agent.agent_id, ())]
        # Whether a run has started matters only in the queue of an engine.
        return tuple(gangs if agent.in_flight else (replace(gang, waits=False) for gang in gangs))

    def _set_agent(self, agent: AgentSnapshot) -> None:
        if self.agents.get(agent.agent_id) != agent:
            self._changes.other = True
        self.agents[agent.agent_id] = agent


def _orphans_of(reader: Reader, row: AgentRow) -> tuple[Gang, ...]:
    """The gangs of ended runs whose processes still run there."""
    runs = [run for run in map(reader.run, row.orphaned_runs) if run is not None]
    return tuple(gang_of(run, reader.replicas([run.run_id])) for run in runs)
