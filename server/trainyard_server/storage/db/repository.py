"""Repository: every write is guarded by the state that was read, and in one transaction with its event.

`Store.read()` gives a consistent view, `Store.write()` the only write transaction. States move by `move_job`,
`move_run` and `change_replica` alone. They refuse moves that are not in the tables of `trainyard_protocol.states`, and
raise `ConcurrentUpdate` if the row has left the state that was read. Callers do not change rows. No network calls.
"""

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, delete, func, select, update
from sqlalchemy.orm import Session

from trainyard_protocol.answers.jobs import CONTINUED, describe_runtime
from trainyard_protocol.job.parameters import number_of, parameters_of
from trainyard_protocol.states import (
    FINAL_JOB_STATES,
    JOB_MOVES,
    REPLICA_MOVES,
    RUN_MOVES,
    JobState,
    ReplicaState,
    RunState,
    check_move,
)
from trainyard_protocol.wire.logs import LogEnd
from trainyard_protocol.wire.observations import ResolvedRun, Stall
from trainyard_server.domain.lifecycle.decisions import ReplicaChange
from trainyard_server.domain.scheduling.resources import Assignment, Part
from trainyard_server.domain.scheduling.scheduler import Waiting
from trainyard_server.storage.db.agent_writer import AgentWriter
from trainyard_server.storage.db.base.columns import Table
from trainyard_server.storage.db.base.models import (
    HELD,
    DeletedJobRow,
    EventRow,
    JobLabelRow,
    JobMetricRow,
    JobOriginRow,
    JobParameterRow,
    JobRow,
    ReplicaRow,
    RunRow,
)
from trainyard_server.storage.db.base.statements import ConcurrentUpdate, add
from trainyard_server.storage.db.live.rows import LiveJob, LiveTransaction
from trainyard_server.storage.db.live.writer import new_keys, set_values
from trainyard_server.storage.db.queries.continuations import continuation_of
from trainyard_server.storage.db.queries.job_inputs import JobInput, JobInputs
from trainyard_server.storage.db.queries.reader import ServiceLine
from trainyard_server.storage.db.tables.audit_trail import AuditTrail

SERVICE_ACTOR = "trainyard"
"""The actor of the events that the service causes by itself."""

STALLED = "stalled"
"""The kind of the event of a stalled run."""

IDLE_GPUS = "idle-gpus"
"""The kind of the event of a run that does not use its GPUs."""

MOVED = "job"
"""The kind of the event of a job that moves."""

_ACTOR_LENGTH = 128

_OF_JOBS: tuple[type[Table], ...] = (RunRow, EventRow, JobLabelRow, JobOriginRow, JobParameterRow, JobMetricRow)
"""Rows that a job has by its key."""


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of a job's history, of a move with the states `before` and `after`. `message`, unless "", is also a line
    of the service's log."""

    kind: str
    message: str = ""
    run: int | None = None
    task: str = ""
    before: str = ""
    after: str = ""

    def lines(self, now: datetime) -> tuple[ServiceLine, ...]:
        """The line of the service's log that it is, if any."""
        text = " ".join(self.message.split())
        return (ServiceLine(now, text, self.kind, self.after),) if text else ()


@dataclass(frozen=True, slots=True)
class NewJob:
    """A row that is to be added, its input, and its first events, which `actor` causes."""

    row: JobRow
    parsed: JobInput
    events: Sequence[Event]
    actor: str
    now: datetime


@dataclass(frozen=True, slots=True)
class JobEvents:
    """Rows that a capability writes beside jobs, in the same transaction.

    `added` is called once for the jobs that are added together, `happened` for the later events of jobs, each by the
    job's key with its number. `rows` are tables with a column `job_key`: their rows are deleted with the job.
    """

    added: Callable[["Writer", Sequence[NewJob]], None] = lambda *_: None
    happened: Callable[["Writer", Mapping[int, tuple[int, Event]]], None] = lambda *_: None
    rows: Sequence[type[Table]] = ()


class Writer(AgentWriter):
    def __init__(
        self,
        session: Session,
        inputs: JobInputs,
        live: LiveTransaction,
        actor: str,
        job_events: Sequence[JobEvents] = (),
    ) -> None:
        super().__init__(session, inputs, live)
        self._job_events = job_events
        self._actor = actor
        self.new_inputs: dict[int, JobInput] = {}
        self.trails: list[AuditTrail] = []

    def serve(self, trail: AuditTrail) -> None:
        """Let the transaction be of this request: check its caller again, and commit its row of the audit. Raises
        Unauthenticated, PermissionDenied."""
        trail.begin(self)
        self.trails.append(trail)

    def act_as(self, actor: str) -> None:
        """Let this actor cause the events that follow."""
        self._actor = actor

    @contextmanager
    def by_service(self) -> Iterator[None]:
        """Let the service itself be the actor of the events in this block."""
        actor, self._actor = self._actor, SERVICE_ACTOR
        try:
            yield
        finally:
            self._actor = actor

    def read_again(self) -> None:
        """Let what follows in this transaction read what it has written."""
        self.session.flush()
        self.session.expire_all()

    def add_job(self, job: JobRow, parsed: JobInput, now: datetime, events: Sequence[Event]) -> None:
        """Add a job in QUEUED; `parsed` is its input. The caller has checked that its id is free."""
        self.add_jobs([NewJob(job, parsed, events, self._actor, now)])

    def add_jobs(self, jobs: Sequence[NewJob]) -> None:
        """Add jobs in QUEUED. The caller has checked that their ids are free, and differ."""
        for key, job in zip(new_keys(self.session, len(jobs)), jobs, strict=True):
            job.row.key, job.row.name = key, job.row.job_id.lower()
        add(self._connection, [job.row for job in jobs])
        for job in jobs:
            lines = tuple(line for event in job.events for line in event.lines(job.now))
            self.live.add(LiveJob(job.row, last_event=len(job.events), lines=lines))
            self.new_inputs[job.row.key] = job.parsed
            self.changes.jobs.add(job.row.key)
        labels = [
            JobLabelRow(job_key=job.row.key, name=name, value=value)
            for job in jobs
            for name, value in job.row.labels.items()
        ]
        parameters = [
            JobParameterRow(job_key=job.row.key, name=name, value=value, number=number_of(value))
            for job in jobs
            for name, value in parameters_of(job.row.training_input.get("args") or ()).items()
        ]
        events = [
            self._event_row(job.row.key, number, event, job.now, job.actor)
            for job in jobs
            for number, event in enumerate(job.events, start=1)
        ]
        for rows in (labels, parameters, events):
            add(self._connection, rows)
        for beside in self._job_events:
            beside.added(self, jobs)

    def add_run(self, job: JobRow, parts: Sequence[Part], now: datetime, message: str) -> RunRow:
        """Add a run in PREPARING, and move the job to PREPARING. The first part has the primary."""
        run = self._new_run(job.key, parts[0].agent_id, now, agents=len(parts))
        further = [self._new_run(job.key, part.agent_id, now, of=run) for part in parts[1:]]
        positions = itertools.count()
        for row, part in zip((run, *further), parts, strict=True):
            self._add_replicas(
                _pending(row, assignment.task, next(positions), assignment) for assignment in part.assignments
            )
        self.move_job(job, JobState.PREPARING, now, message, run=run.number, backoff_until=None)
        return run

    def add_restart(self, gang: RunRow, task: str, message: str, now: datetime) -> None:
        """Add a run in PREPARING of one replica alone, with what it has in the gang's run."""
        before = next(replica for replica in self.gang(gang) if replica.task == task)
        agent_id = next(part.agent_id for part in self.parts(gang) if part.run_id == before.run_id)
        run = self._new_run(gang.job_key, agent_id, now, beside=gang.number)
        self._add_replicas([_pending(run, task, 0, before)])
        self.add_event(gang.job_key, Event("restart", message, run.number, task), now)

    def _new_run(
        self,
        job_key: int,
        agent_id: str,
        now: datetime,
        *,
        beside: int | None = None,
        agents: int = 1,
        of: RunRow | None = None,
    ) -> RunRow:
        """A new run, or `of` one a further part."""
        before = self._live_job(job_key).runs
        run = RunRow(
            run_id=uuid.uuid4().hex,
            job_key=job_key,
            number=max((run.number for run in before), default=0) + 1 if of is None else of.number,
            beside=beside,
            part_of=None if of is None else of.run_id,
            agents=agents if of is None else of.agents,
            agent_id=agent_id,
            state=RunState.PREPARING,
            created_at=now,
        )
        add(self._connection, [run])
        self.live.add_run(run)
        self.changes.jobs.add(job_key)
        self.changes.placed = True
        return run

    def _add_replicas(self, replicas: Iterable[ReplicaRow]) -> None:
        rows = list(replicas)
        add(self._connection, rows)
        for row in rows:
            job = self.live.known_job_of_run(row.run_id)
            assert job is not None
            job.replicas[row.run_id].append(row)

    def move_job(
        self, job: JobRow, after: JobState, now: datetime, message: str = "", *, run: int | None = None, **values: Any
    ) -> None:
        """Move the job. A job that leaves the queue waits for nothing."""
        before = job.state
        check_move(JOB_MOVES, before, after)
        if before is JobState.QUEUED:
            values |= {"waiting": "", "waiting_kind": "", "position": 0}
        self._change_job(job, {"state": before}, state=after, **values)
        self.add_event(job.key, Event(MOVED, message, run, before=before, after=after), now)

    def move_run(self, run: RunRow, after: RunState, now: datetime, message: str = "", **values: Any) -> None:
        """Move the run with all its parts."""
        before = run.state
        check_move(RUN_MOVES, before, after)
        for part in self.parts(run):
            self._note_run(part, {"state": before}, state=after, **values)
        set_values(run, state=after, **values)
        self.changes.jobs.add(run.job_key)
        self.add_event(run.job_key, Event("run", message, run.number, before=before, after=after), now)

    def change_replica(self, run: RunRow, change: ReplicaChange, now: datetime) -> None:
        """Apply an observed change: a move with its event, or a detail such as the address without one."""
        moves = change.before is not change.after
        if moves:
            check_move(REPLICA_MOVES, change.before, change.after)
        values: dict[str, Any] = {
            "state": change.after,
            "address": change.address,
            "started_at": change.started_at,
            "waits": change.waits,
        }
        if change.exit is not None:
            values |= {
                "finished_at": change.exit.finished_at,
                "exit_code": change.exit.code,
                "reason": change.exit.reason,
                "message": change.exit.message,
                "after_stop": change.exit.after_stop,
                "exit_order": change.exit.order,
                "exit_error_s": change.exit.error_s,
            }
        self._note_replica(run.run_id, change.task, {"state": change.before}, **values)
        self.changes.jobs.add(run.job_key)
        if moves:
            event = Event("replica", change.message, run.number, change.task, change.before, change.after)
            self.add_event(run.job_key, event, now)

    def complete_log(
        self,
        run: RunRow,
        task: str,
        now: datetime,
        event: Event | None = None,
        *,
        end: LogEnd | None = None,
        stored: int | None = None,
    ) -> None:
        """Mark a replica's log as complete. `end` is from its agent; `stored` is the number of lines that a quota left.
        With neither its agent is lost, and may come back.

        Does nothing once the agent has ended it.
        """
        self.changes.jobs.add(run.job_key)
        replica = self.replica(run.run_id, task)
        if replica is None or not replica.is_log_open:
            return
        values: dict[str, object] = {"log_complete": True, "log_kept": stored}
        if end is not None:
            values |= {"log_lines": end.count, "log_sha256": end.sha256}
        self._note_replica(run.run_id, task, {}, **values)
        if event is not None:
            self.add_event(run.job_key, event, now)

    def record_progress(self, run_id: str, task: str, values: Mapping[str, Any], *, complete: bool) -> bool:
        """Record the steps of a replica. After its log is complete only values with `complete` are written. Whether an
        event was added: with the first step of a run after another, where it continues."""
        replica = self.replica(run_id, task)
        if replica is None or (replica.log_complete and not complete):
            return False
        first, run = values.get("first_step"), self.run(run_id)
        message = continuation_of(self, run, task, first) if replica.first_step is None and first is not None else ""
        if run is not None and message:
            self.add_event(run.job_key, Event(CONTINUED, message, run.number), values["step_at"])
        if not complete:
            # Another process may have written what this one has not read, such as an earlier checkpoint.
            values = {name: value for name, value in values.items() if value is not None}
            if replica.first_step is not None:
                values.pop("first_step", None)
        if values:
            self._note_replica(run_id, task, {}, **values)
        return bool(message)

    def record_stall(self, run: RunRow, task: str, stall: Stall | None, stacks: str) -> None:
        """Record a stall, or its end (None). With `stacks` "" the stored stacks stay."""
        values: dict[str, Any] = {"stall": stall.model_dump(mode="json") if stall else None}
        if stacks:
            values["stacks"] = stacks
        self.changes.jobs.add(run.job_key)
        self._note_replica(run.run_id, task, {}, **values)

    def record_activity(self, run: RunRow, activity: str, ready: bool, now: datetime, events: Iterable[Event]) -> None:
        """Record the activity of a run, with its events. The run counts as acknowledged by its agent."""
        self._note_run(run, {}, activity=activity, ready=ready, acknowledged=True)
        for event in events:
            self.add_event(run.job_key, event, now)

    def record_runtime(self, run: RunRow, runtime: str, reason: str, now: datetime) -> None:
        """Record where the run's replicas run, and the reason, if any, in the job's log."""
        self._note_run(run, {}, runtime=runtime, runtime_reason=reason)
        if reason:
            message = f"Its replicas run {describe_runtime(runtime, reason)}."
            self.add_event(run.job_key, Event("runtime", message, run.number), now)

    def record_resolved(self, run: RunRow, resolved: ResolvedRun, now: datetime) -> None:
        """Record the versions that a run has, once, and in the job's log what was installed for it."""
        self._note_run(run, {}, has_resolved=True, resolved=resolved.model_dump_json(exclude={"installed"}))
        for note in resolved.installed:
            self.add_event(run.job_key, Event("preparing", f"{note}.", run.number), now)

    def mark_measured(self, key: int) -> None:
        """Record that the job's metrics are of its whole log and its event files."""
        own = self._live_job(key).row
        self._change(own, own, {"measured": True}, key=key)

    def record_waiting(self, notes: Mapping[int, Waiting], events: Mapping[int, Event], now: datetime) -> None:
        """Record why queued jobs wait. It changes with every job ahead, so that only some of the notes are events."""
        queued = select(JobRow.key, JobRow.waiting_kind).where(
            JobRow.key.in_(list(notes)), JobRow.state == JobState.QUEUED
        )
        still = {key: kind for key, kind in self.session.execute(queued)}  # noqa: C416 - rows are tuples by name
        statement = (
            update(JobRow.__table__)  # type: ignore[arg-type]
            .where(JobRow.key == bindparam("job_key"), JobRow.state == JobState.QUEUED)
            .values(waiting_kind=bindparam("kind"), waiting=bindparam("reason"), position=bindparam("queue_position"))
        )
        rows = [
            {"job_key": key, "kind": why.kind, "reason": why.reason, "queue_position": why.position}
            for key, why in notes.items()
            if key in still
        ]
        if rows:
            self._connection.execute(statement, rows)
            self.changes.noted = True
            for key in still:
                if (job := self.live.known_job(key)) is not None:
                    why = notes[key]
                    set_values(job.row, waiting_kind=why.kind, waiting=why.reason, position=why.position)
        # Another process may have written the same.
        new = {key: event for key, event in events.items() if key in still and still[key] != notes[key].kind}
        self._add_events(new, now)

    def hold(self, job: JobRow, reason: str, now: datetime) -> None:
        """Hold back a queued job for this reason ("waits for ..."): the scheduler passes it and delays nobody for it,
        and a study makes no trials. With "" it goes on, and its maxWaitTime begins now."""
        kind = HELD if reason else ""
        values: dict[str, Any] = {"waiting": reason, "waiting_kind": kind, "position": 0}
        if not reason:
            values["queued_at"] = now
        self._change_job(job, {"state": JobState.QUEUED}, **values)
        message = f"Job {job.job_id} {reason}." if reason else f"Job {job.job_id} may start now."
        self.add_event(job.key, Event("waiting", message), now)

    def delete_job(self, job: JobRow, now: datetime, by: str) -> None:
        """Delete a job that has ended with everything that belongs to it. Its id and its key stay used."""
        if job.state not in FINAL_JOB_STATES:
            raise ConcurrentUpdate
        runs = select(RunRow.run_id).where(RunRow.job_key == job.key)
        tables = [*_OF_JOBS, *(row for beside in self._job_events for row in beside.rows)]
        for statement in (
            delete(ReplicaRow).where(ReplicaRow.run_id.in_(runs)),
            *(delete(row).where(row.__table__.c.job_key == job.key) for row in tables),
            delete(JobRow).where(JobRow.key == job.key),
        ):
            self.session.execute(statement.execution_options(synchronize_session=False))
        self.live.delete(job.key)
        self.changes.jobs.add(job.key)
        deleted = DeletedJobRow(key=job.key, project=job.project, job_id=job.job_id, deleted_at=now, deleted_by=by)
        add(self._connection, [deleted])

    def set_labels(self, job: JobRow, labels: dict[str, str], now: datetime) -> None:
        """Replace the labels, if they have not changed since they were read."""
        self._change_job(job, {"revision": job.revision}, labels=labels, revision=job.revision + 1)
        self.session.execute(delete(JobLabelRow).where(JobLabelRow.job_key == job.key))
        rows = [JobLabelRow(job_key=job.key, name=name, value=value) for name, value in labels.items()]
        add(self._connection, rows)
        self.add_event(job.key, Event("labels"), now)

    def set_note(self, job: JobRow, note: str) -> None:
        self._change_job(job, {}, note=note)

    def add_event(self, job_key: int, event: Event, now: datetime) -> None:
        self._add_events({job_key: event}, now)

    def _add_events(self, events: Mapping[int, Event], now: datetime) -> None:
        """Add an event of each of these jobs."""
        self.changes.wrote = True
        numbers = {key: self._next_event(key) for key in events}
        for key, event in events.items():
            job = self._live_job(key)
            job.lines = None if job.lines is None else (*job.lines, *event.lines(now))
            self._writes[-1].add_event(self._event_row(key, numbers[key], event, now))
        for beside in self._job_events:
            beside.happened(self, {key: (numbers[key], event) for key, event in events.items()})

    def _next_event(self, key: int) -> int:
        job = self._live_job(key)
        if job.last_event is None:
            query = select(func.max(EventRow.number)).where(EventRow.job_key == key)
            job.last_event = self.session.scalar(query) or 0
        job.last_event += 1
        return job.last_event

    def _event_row(self, job_key: int, number: int, event: Event, now: datetime, actor: str | None = None) -> EventRow:
        return EventRow(
            job_key=job_key,
            number=number,
            time=now,
            kind=event.kind,
            message=" ".join(event.message.split()),
            run=event.run,
            task=event.task,
            before=event.before,
            after=event.after,
            actor=(self._actor if actor is None else actor)[:_ACTOR_LENGTH],
        )


def _pending(run: RunRow, task: str, position: int, given: Assignment | ReplicaRow) -> ReplicaRow:
    """A replica of a new run, with what is given to it."""
    return ReplicaRow(
        run_id=run.run_id,
        task=task,
        position=position,
        state=ReplicaState.PENDING,
        machine_type=given.machine_type,
        cpus=list(given.cpus),
        gpus=list(given.gpus),
        memory_bytes=given.memory_bytes,
        vcpus=given.vcpus,
        accelerator_type=given.accelerator_type,
        accelerator_count=given.accelerator_count,
    )
