"""Use case of agents: deliver the log lines of replicas."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from trainyard_protocol.errors import NotFound
from trainyard_protocol.fields import sized
from trainyard_protocol.job.cluster import PRIMARY
from trainyard_protocol.states import FINAL_JOB_STATES, RunState
from trainyard_protocol.wire.logs import LogChunk, LogGap, LogReceipt
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.reports import checked_chunk
from trainyard_server.services.agents.agent_keys import actor_of, run_with
from trainyard_server.storage.db.base.models import JobRow, RunRow
from trainyard_server.storage.db.repository import SERVICE_ACTOR, Event
from trainyard_server.storage.db.tables import job_values
from trainyard_server.storage.events.notifier import agent_topic, job_topic, log_topic
from trainyard_server.storage.failures import DatabaseError
from trainyard_server.storage.logs.store import LogMismatch, Stream

logger = logging.getLogger(__name__)


class LogChunks:
    def __init__(self, backend: Backend, controller: Controller) -> None:
        self._backend = backend
        self._controller = controller

    def append(self, run_id: str, task: str, chunk: LogChunk, key: AgentKey) -> LogReceipt:
        """Add the lines that continue the replica's log. Complete once its end is here and agrees with the lines that
        the server has, or once the job's log quota is used up.

        A log that can never be completed is closed as it is, with an event: no job waits for it. An agent that was lost
        and is back completes the logs of its ended runs, while their jobs go on. Raises NotFound for an unknown
        replica, or one whose job was deleted meanwhile, PermissionDenied for another agent's.
        """
        try:
            return self._append(run_id, task, chunk, key)
        except (DatabaseError, FileNotFoundError):
            with self._backend.store.live() as reader:
                run_with(reader, run_id, key)  # which says so if it was deleted meanwhile
            raise

    def _append(self, run_id: str, task: str, chunk: LogChunk, key: AgentKey) -> LogReceipt:
        backend = self._backend
        chunk = checked_chunk(chunk)
        with backend.store.live() as reader:
            run, replica = run_with(reader, run_id, key), reader.replica(run_id, task)
            if replica is None:
                raise NotFound(f"There is no replica {task} of a run {run_id} here.")
            job = reader.job_by_key(run.job_key)
            agent = reader.agent(run.agent_id)
        logs, stream = backend.logs, Stream(run.number, task)
        if not replica.is_log_open or job.state in FINAL_JOB_STATES:
            return LogReceipt(next=logs.count(job.project, job.job_id, stream), complete=True)
        if chunk.gap is not None and chunk.start == logs.count(job.project, job.job_id, stream):
            self._note_gap(run, task, chunk.gap)
        quota = backend.settings.log_quota
        appended = logs.append(job.project, job.job_id, stream, chunk.start, chunk.lines, quota)
        if appended.new == appended.next:
            self._check_kept(job, run_id, key)
        if appended.new:
            backend.observations.lines_stored(appended.new)
            begin = appended.next - appended.new
            stored_metrics = partial(self._stored_metrics, run_id, task)
            backend.progress.add(run_id, task, begin, appended.new, appended.reports, stored_metrics)
            backend.notifier.publish(log_topic(job.key))
        complete, stored, event = False, None, None
        end_sha256 = chunk.end.sha256 if chunk.end is not None else ""
        if appended.full:
            complete, stored = True, appended.next
        elif chunk.end is not None:
            try:
                complete = logs.verify(job.project, job.job_id, stream, chunk.end)
                stored = chunk.end.count if chunk.end.cut else None
                if complete and not end_sha256:
                    end_sha256 = logs.sha256(job.project, job.job_id, stream)
            except LogMismatch as mismatch:
                complete = True
                message = f"The log of {task} is not what the replica wrote: {mismatch}."
                event = Event("log-damaged", message, run.number, task)
                logger.warning("Job %s of %s, run %d: %s", job.job_id, job.project, run.number, message)
        if complete:
            if stored is not None:
                event = Event("log-quota", _quota_notice(task, stored, quota), run.number, task)
            if event is None and chunk.end is not None and chunk.end.missing != 0:
                event = Event("log-damaged", _missing_notice(task, chunk.end.missing), run.number, task)
            if event is None and replica.log_complete:
                message = f"The log of {task} is complete: its agent is back, and has sent its end."
                event = Event("log-complete", message, run.number, task)
            steps, measured = backend.progress.final_values(job.project, job.job_id, stream, run_id, appended.next)
            actor = actor_of(str(agent.info["name"])) if agent is not None else SERVICE_ACTOR
            with backend.store.write(actor) as writer:
                writer.record_progress(run_id, task, steps, complete=True)
                if task == PRIMARY.name:
                    job_values.record(writer, {job.key: measured})
                now, end = backend.clock(), chunk.end if not appended.full else None
                end = end and end.model_copy(update={"sha256": end_sha256})
                writer.complete_log(run, task, now, event, end=end, stored=stored)
                moves = self._controller.move(writer, [job.key], now)
            is_late = run.state is RunState.ENDED
            backend.notifier.publish(job_topic(job.key), *([agent_topic(run.agent_id)] if is_late else []))
            self._controller.follow(moves)
            self._controller.schedule()  # what this run held may be free now
        position = logs.position(job.project, job.job_id, stream) if chunk.resume else None
        return LogReceipt(next=appended.next, complete=complete, position=position)

    def _check_kept(self, job: JobRow, run_id: str, key: AgentKey) -> None:
        """Remove a log that was empty before these lines, if its job was deleted meanwhile. Raises NotFound then."""
        with self._backend.store.live() as reader:
            try:
                run_with(reader, run_id, key)
            except NotFound:
                self._backend.logs.remove(job.project, job.job_id)
                raise

    def _note_gap(self, run: RunRow, task: str, gap: LogGap) -> None:
        """Record that lines may be missing, once, before the lines behind them are stored."""
        message = f"The log of {task} may lack lines {_times_of(gap)}: its engine may have dropped them."
        with self._backend.store.write() as writer:
            if not any(event.message == message for event in writer.events(run.job_key)):
                event = Event("log-damaged", message, run.number, task)
                writer.add_event(run.job_key, event, self._backend.clock())

    def _stored_metrics(self, run_id: str, task: str) -> Mapping[str, Any] | None:
        with self._backend.store.live() as reader:
            return reader.digests([run_id]).get((run_id, task))


def _times_of(gap: LogGap) -> str:
    if gap.after and gap.before:
        return f"between {gap.after} and {gap.before}"
    return f"after {gap.after}" if gap.after else f"before {gap.before or 'its end'}"


def _missing_notice(task: str, missing: int | None) -> str:
    if missing is None:
        return f"The log of {task} may lack its last lines: what stored them was killed or removed."
    return f"The log of {task} lacks {missing} line{'s' * (missing != 1)}, which its machine has lost."


def _quota_notice(task: str, stored: int, quota: int) -> str:
    of = f" of {sized(quota)}" if quota else ""
    return (
        f"The log of {task} continues, but the job's log quota{of} is used up: "
        f"its lines from number {stored} on are not kept."
    )
