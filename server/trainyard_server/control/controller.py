"""Controller: applies the decisions of the lifecycle and the scheduler, each in a transaction of its own or in that of
the report which it follows from.

Every method may be repeated at any time and by several threads: each step reads the state again inside its
transaction, and a process that was killed between two steps continues with the next one after its restart.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from trainyard_protocol.answers.jobs import WITHOUT_GPUS
from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.states import FINAL_JOB_STATES, JobState, RunState
from trainyard_protocol.wire.agents import CLUSTER
from trainyard_server.context import Backend
from trainyard_server.control.queue_plan import QueuePlan
from trainyard_server.control.restoration import Restoration
from trainyard_server.control.service_log import ServiceLog
from trainyard_server.control.snapshots import agent_lease, job_snapshot, live_runs, run_snapshot
from trainyard_server.control.study_controller import StudyController
from trainyard_server.control.workload import Workload
from trainyard_server.domain.lifecycle import causes, decisions, retries
from trainyard_server.domain.lifecycle.causes import Cause
from trainyard_server.domain.lifecycle.decisions import EndOfLog
from trainyard_server.domain.lifecycle.evaluators import run_of
from trainyard_server.domain.scheduling import blame, scheduler
from trainyard_server.domain.scheduling.blame import HostFailure
from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.snapshots import JobSnapshot
from trainyard_server.storage.db.base import revisions
from trainyard_server.storage.db.base.models import JobRow, RunRow
from trainyard_server.storage.db.base.revisions import WaitingNote
from trainyard_server.storage.db.queries.reader import AgentHeartbeat, Reader, Revision
from trainyard_server.storage.db.repository import Event, Writer
from trainyard_server.storage.db.tables import studies
from trainyard_server.storage.events.notifier import agent_topic, job_topic, progress_topic, waiting_topics
from trainyard_server.storage.failures import FailureLog, is_database_failure
from trainyard_server.storage.logs.store import Stream

logger = logging.getLogger(__name__)

_RUNS_AT_ONCE = 20
_FEW_NOTES, _NOTES_AT_ONCE = 20, 500
"""Limits of one transaction or one round, so that nobody waits long for the writers' lock."""

_LONG_S, _REST = 0.1, 3.0
"""CPU time of a plan that is followed by a pause, and the pause as a multiple of it."""


class Controller:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._studies = StudyController(backend)
        self.restoration = Restoration(backend)
        settings = backend.settings
        self._policy = decisions.RetryPolicy(
            settings.retries, settings.backoff_first_s, settings.backoff_max_s, settings.stall_action
        )
        self._workload = Workload(backend.agent_liveness)
        self._looking = threading.Lock()  # at the workload
        self._plan = QueuePlan()
        self._planning = threading.Lock()
        self._plan_requested = self._explain_requested = False
        self._plan_after = {False: 0.0, True: 0.0}
        """When the next plan may begin, without and with the reasons of the jobs that wait."""
        self._notes: dict[int, scheduler.Waiting] = {}  # to be written, the oldest first
        self._log = ServiceLog(backend)
        self._failures = FailureLog(logger)

    def tick(self) -> None:
        """Look at what has changed and what time changes: silent agents, time limits, the queue."""
        self._backend.membership.decides = True
        now = self._backend.clock()
        self._advance_all(self.restoration.step(now))
        with self._looking:
            self._refresh()
            busy, heartbeats = self._workload.busy, list(self._workload.heartbeats)
        self._watch_agents(busy, heartbeats, now)
        with self._looking:
            due = self._workload.claim_due(now)
            jobs = [self._workload.jobs[key] for key in sorted(due)]
            open_studies, unfinished = sorted(self._workload.studies), self._workload.unfinished
        for number, job in enumerate(jobs):
            try:
                # What a stalled replica last reported is written without a revision.
                if decisions.is_restless(job) or decisions.step(job, now, self._policy) is not None:
                    self.advance(job.key)
            except Exception as error:
                with self._looking:
                    for unsettled in jobs[number:] if is_database_failure(error) else [job]:
                        self._workload.see_again(unsettled.key)
                if is_database_failure(error):
                    raise  # the next job would fail too
                self._failures.record(f"Job {job.job_id} of {job.project} could not be moved forward", error)
        for key in open_studies:
            self._advance_study(key, write_log=not self._log.is_written(key))
        try:
            self.schedule(explain=True)
        finally:  # after the plan, whose reasons to wait are lines, too
            self._log.catch_up(unfinished)

    def observe_agents(self) -> None:
        """Record the heartbeats of agents and retry failed logs, while another process ticks."""
        self._backend.membership.decides = False
        with self._backend.store.read() as reader:
            for agent in reader.heartbeats():
                self._backend.agent_liveness.silent_s(agent)
        self._log.forget()  # the process that ticks may be killed
        self._log.retry()

    def advance(self, key: int) -> None:
        """Apply every transition that the job is ready for, and write its missing service lines. What a trial does may
        move its study."""
        with self._backend.store.live() as reader:
            kind = studies.kind_of(reader, key)
        if kind.is_study:
            self._advance_study(key, write_log=True)
            return
        self._advance_job(key)
        if kind.study_key is not None:
            self._backend.notifier.publish(job_topic(kind.study_key))
            self._advance_study(kind.study_key, write_log=False)

    def move(self, writer: Writer, keys: Collection[int], now: datetime, measured: Collection[int] = ()) -> "Moves":
        """Apply, at the end of a transaction of the caller's, every transition that these jobs are ready for. `follow`
        does the rest after it. `measured`: those that have reported a trial's metric."""
        moves = Moves(dict.fromkeys(keys), telling=set(measured))
        with writer.by_service():
            if keys:
                writer.read_again()
            for key in keys:
                try:
                    self._move(writer, key, now, moves)
                except Exception as error:
                    if is_database_failure(error):
                        raise
                    writer.read_again()
                    moves.left.add(key)  # `follow` meets it again, alone
        return moves

    def _move(self, writer: Writer, key: int, now: datetime, moves: "Moves") -> None:
        while True:
            job = job_snapshot(writer, key)
            row = writer.job_by_key(key)
            moves.studies[key] = row.study_key
            if self._needs_logs(job):
                moves.left.add(key)
                return
            step = decisions.step(job, now, self._policy, self._end_of_log(job))
            if step is None:
                return
            with writer.whole():
                topics = self._carry_out(writer, row, step, now)
            moves.topics += topics
            moves.releases |= step.run is RunState.ENDED or step.job not in (None, JobState.RUNNING)
            if step.job is not None:
                moves.telling.add(key)
            if step.job in FINAL_JOB_STATES:
                return

    def follow(self, moves: "Moves") -> None:
        """Tell whom `move` concerns, and write the service's lines."""
        self._backend.notifier.publish(*moves.topics)
        for key, study in moves.studies.items():
            if key in moves.left:
                self.advance(key)
                continue
            self.write_log(key)
            if study is not None:
                self._backend.notifier.publish(job_topic(study))
        for study in {moves.studies[key] for key in moves.telling - moves.left}:
            if study is not None:
                self._advance_study(study, write_log=False)

    def _advance_job(self, key: int) -> bool:
        """Whether it moved."""
        moved = False
        while self._step(key):
            moved = True
        self.write_log(key)
        return moved

    def _advance_study(self, key: int, *, write_log: bool) -> None:
        """Move the study and the trials that it creates and stops. `write_log`: also where nothing moves. A failure is
        logged, and the next tick tries again: it must not stop a trial's agent."""
        with self._failures.guarding(f"The study with the job number {key} could not be moved forward"):
            moved, touched = self._studies.advance(key)
            while touched:
                changed = [self._advance_job(trial) for trial in touched]
                moved, touched = True, self._studies.advance(key)[1] if any(changed) else []
            if moved or write_log:
                self.write_log(key)

    def schedule(self, *, explain: bool = False) -> None:
        """Start the jobs that can start; record why each other job waits, where the queue is short, and with `explain`.
        One thread plans; the others let it do so once more."""
        if self.restoration.is_holding():
            return
        self._plan_requested = True
        self._explain_requested |= explain
        while self._plan_requested and self._planning.acquire(blocking=False):
            try:
                self._plan_requested = False
                explain, self._explain_requested = self._explain_requested, False
                self._plan_queue(explain)
            finally:
                self._planning.release()

    def _plan_queue(self, is_round: bool) -> None:
        """Plan outside of the transactions, which are short and check again what they write. `is_round`: at an end
        alone a long queue is not explained, and many notes that differ in words and position alone are not written."""
        now = self._backend.clock()
        explain = is_round and time.monotonic() >= self._plan_after[True]
        if time.monotonic() >= self._plan_after[explain]:
            with self._looking:
                self._refresh()
                revision, changes = self._workload.revision, self._workload.claim_changes()
                queue, agents = list(self._workload.queue.values()), list(self._workload.agents.values())
            rules = self._backend.quotas, self._backend.shared_dirs
            try:
                began = time.thread_time()
                plan = self._plan.update(queue, agents, changes, now, *rules, explain)
                took_s = time.thread_time() - began
                if took_s > _LONG_S:  # a long queue must not keep others from the processor
                    self._plan_after[explain] = time.monotonic() + _REST * took_s
                if plan is not None:
                    self._note(plan.waiting)
                    if plan.placements and revision is not None:
                        self._plan_requested |= not self._place(plan.placements, revision, now)
            except BaseException:
                self._plan.forget()
                raise
        self._write_notes(now, all_words=is_round or len(self._notes) <= _FEW_NOTES)

    def cancel(self, key: int, why: str) -> None:
        """Cancel a job that runs, for the service."""
        with self._backend.store.write() as writer:
            row = writer.find_job(key)
            if row is None or row.state is not JobState.RUNNING:
                return
            step = decisions.Transition(job=JobState.CANCELLING, job_message=why, stop_message=why)
            _apply(writer, row, writer.live_run(key), step, self._backend.clock())
        self._backend.notifier.publish(job_topic(key))
        self.advance(key)

    def seen(self) -> tuple[Sequence[JobSnapshot], Sequence[AgentSnapshot], Sequence[JobSnapshot]]:
        """The queue, the agents, and all jobs that have not ended, as they are now."""
        with self._looking:
            self._refresh()
            workload = self._workload
            return list(workload.queue.values()), list(workload.agents.values()), list(workload.jobs.values())

    def flush_progress(self) -> None:
        """Write the steps that this process has read, and tell whom they concern."""
        flushed = self._backend.progress.flush()
        continued = [key for key, has_event in flushed.items() if has_event]
        self._log.write_later(*continued)
        self._backend.notifier.publish(*map(progress_topic, flushed), *map(job_topic, continued))

    def _note(self, waiting: Mapping[int, scheduler.Waiting]) -> None:
        """Remember which reasons are to be recorded."""
        with self._looking:
            noted = self._workload.notes
            for key in [key for key in self._notes if key not in noted]:
                del self._notes[key]
            for key, why in waiting.items():
                if (why.kind, why.reason, why.position) != noted.get(key):
                    self._notes[key] = why
                else:
                    self._notes.pop(key, None)

    def _place(self, placements: Sequence[scheduler.Placement], revision: Revision, now: datetime) -> bool:
        """Create the runs, some in each transaction. Whether all were: not where another process has created runs since
        the revision, or where a job or its agent has changed."""
        is_whole = True
        for at in range(0, len(placements), _RUNS_AT_ONCE):
            placed: list[tuple[JobRow, list[str]]] = []
            with self._backend.store.write() as writer:
                if revisions.current(writer).placed != revision.placed:
                    return False
                for placement in placements[at : at + _RUNS_AT_ONCE]:
                    job = writer.find_job(placement.key)
                    agents = [writer.agent(part.agent_id) for part in placement.parts]
                    changed = [row is None or row.changed > revision.value for row in (job, *agents)]
                    if job is None or job.state is not JobState.QUEUED or any(changed):
                        is_whole = False
                        continue
                    run = writer.add_run(job, placement.parts, now, "Waiting for job to be provisioned.")
                    if run.number == 1:
                        self._backend.observations.queue_waits.observe((now - job.queued_at).total_seconds())
                    if placement.scaled:
                        writer.add_event(job.key, Event("scaled-down", placement.scaled, run.number), now)
                    if placement.without_gpus:
                        writer.add_event(job.key, Event(WITHOUT_GPUS, placement.without_gpus, run.number), now)
                    if placement.spread:
                        writer.add_event(job.key, Event("spread", placement.spread, run.number), now)
                    placed.append((job, [part.agent_id for part in placement.parts]))
            written = writer.changes.revision
            revision = revision if written is None else revision._replace(placed=written.placed)
            for job, agent_ids in placed:
                self._backend.notifier.publish(job_topic(job.key), *map(agent_topic, agent_ids))
            self.write_log(*(job.key for job, _ in placed))
            for key in {job.study_key for job, _ in placed if job.study_key is not None}:
                self._advance_study(key, write_log=False)
        return is_whole

    def _write_notes(self, now: datetime, *, all_words: bool) -> None:
        """Record why jobs wait, the longest outdated notes first: a long queue in some rounds. `all_words`: also where
        a job waits for the same, with another position or more room, as after each start."""
        with self._looking:
            noted = self._workload.notes
            others = {key for key, why in self._notes.items() if key not in noted or noted[key].kind != why.kind}
            keys = [key for key in self._notes if all_words or key in others]
            some = {key: self._notes[key] for key in keys[:_NOTES_AT_ONCE]}
            # Only another kind of reason is an event: positions change all the time.
            new = [key for key, why in some.items() if key in noted and key in others and why.kind != "backoff"]
            events = {
                key: Event("waiting", f"Job {self._workload.queue[key].job_id} waits: {some[key].reason}.")
                for key in new
                if key in self._workload.queue
            }
        if not some:
            return
        with self._backend.store.write() as writer:
            writer.record_waiting(some, events, now)
        written = {key: WaitingNote(why.kind, why.reason, why.position) for key, why in some.items()}
        with self._looking:
            self._workload.noted(written.items(), writer.changes.revision)
            for key, why in some.items():
                if self._notes.get(key) is why:
                    del self._notes[key]
        self._backend.notifier.publish(*waiting_topics(some))
        self._log.write_later(*events)
        self._log.retry()

    def _refresh(self) -> None:
        with self._backend.store.live() as reader:
            self._workload.refresh(reader)

    def _watch_agents(self, busy: set[str], heartbeats: Sequence[AgentHeartbeat], now: datetime) -> None:
        """Update the runs of agents that are silent or lost."""
        settings = self._backend.settings
        silent_s = self._backend.agent_liveness.silent_s
        silent = [agent.agent_id for agent in heartbeats if silent_s(agent) > settings.silent_after_s]
        for agent_id in busy.intersection(silent):
            with self._failures.guarding(f"The runs of the silent agent {agent_id} could not be updated"):
                self._watch_silent(agent_id, now)

    def write_log(self, *keys: int) -> None:
        """Write the service's lines of these jobs; a later tick retries those that cannot be written now."""
        self._log.write(*keys)

    def write_log_soon(self, key: int) -> None:
        """Let the next tick write the service's lines, with those of other jobs; who follows the log does so first."""
        if self._backend.settings.run_loops:
            self._log.write_later(key)
        else:
            self._log.write(key)

    def write_service_lines(self, key: int) -> None:
        """Append the missing lines of a job. Raises what the database and the log raise."""
        self._log.write_now(key)

    def _watch_silent(self, agent_id: str, now: datetime) -> None:
        """Mark the replicas of a silent agent as UNKNOWN, or as lost after its lease."""
        touched = set()
        self.flush_progress()  # a lost replica delivers no more lines
        with self._backend.store.write() as writer:
            agent = writer.agent(agent_id)
            lease = agent_lease(agent, self._backend) if agent is not None else None
            if lease is None or lease.silent_s <= self._backend.settings.silent_after_s:
                return  # the agent is back
            for run, replicas in live_runs(writer, agent_id):
                snapshot = run_snapshot(run, replicas)
                changes = decisions.host_lost(snapshot, lease.agent, lease.given_up_after_s, now)
                lost = lease.is_lost or (
                    lease.is_given_up and self._may_give_up(job_snapshot(writer, run.job_key), changes, now)
                )
                for change in changes if lost else decisions.silent_changes(snapshot, lease.agent):
                    writer.change_replica(run, change, now)
                    touched.add(run.job_key)
                for replica in snapshot.replicas if lost else ():
                    if not replica.log_complete:  # if its agent comes back, it sends what is missing
                        message = f"The log of {replica.task} may lack its end: its host was lost."
                        event = Event("log-damaged", message, run.number, replica.task)
                        writer.complete_log(run, replica.task, now, event)
                        touched.add(run.job_key)
        self._advance_all(touched)

    def _advance_all(self, keys: Collection[int]) -> None:
        """Move jobs whose replicas have changed."""
        for key in keys:
            self._backend.notifier.publish(job_topic(key))
            with self._failures.guarding(f"Job number {key} could not be moved forward"):
                self.advance(key)

    def _may_give_up(self, job: JobSnapshot, lost: Sequence[decisions.ReplicaChange], now: datetime) -> bool:
        replica, matches = decisions.decider(job), frozenset[int]()
        if replica is not None and retries.needs_log(job, replica):
            entries = self._last_entries(job, run_of(job, replica).number, replica.task)
            matches = retries.log_matches(job, replica, [entry.text for entry in entries])
        return decisions.may_give_up(job, lost, now, self._policy, matches)

    def _last_entries(self, job: JobSnapshot, run: int, task: str) -> tuple[LogEntry, ...]:
        stream = Stream(run, task)
        return self._backend.logs.last_entries(job.project, job.job_id, stream, causes.LINES, causes.CHARACTERS)

    def _step(self, key: int) -> bool:
        """Apply the next transition of a job. False if there is none."""
        backend = self._backend
        with backend.store.live() as reader:
            job = job_snapshot(reader, key)
        now = backend.clock()
        step = decisions.step(job, now, self._policy, self._end_of_log(job))
        if step is None:
            return False  # the usual case, without a write transaction
        with backend.store.write() as writer:
            if job_snapshot(writer, key) != job:
                return True  # it has changed since it was read: decide again
            topics = self._carry_out(writer, writer.job_by_key(key), step, now)
        backend.notifier.publish(*topics)
        return True

    def _carry_out(self, writer: Writer, row: JobRow, step: decisions.Transition, now: datetime) -> list[str]:
        """Apply a transition, count it, and blame the machine for it. Returns the topics to publish."""
        run = writer.run(step.of_restart) if step.of_restart else writer.live_run(row.key)
        _apply(writer, row, run, step, now)
        self._observe(run, step, now)
        self._blame(writer, row, run, step, now)
        return [job_topic(row.key), *_agent_topics(writer, run)]

    def _observe(self, run: RunRow | None, step: decisions.Transition, now: datetime) -> None:
        """Count the move of a run for monitoring."""
        if run is None or step.of_restart:
            return
        if step.run is RunState.RUNNING:
            self._backend.observations.starts.observe((now - run.created_at).total_seconds())
        elif step.run is RunState.ENDED and step.verdict is not None:
            self._backend.observations.run_ended(step.verdict.reason)

    def _blame(
        self, writer: Writer, job: JobRow, run: RunRow | None, step: decisions.Transition, now: datetime
    ) -> None:
        """Count the end of a run against its machine, and drain that with the third, if it is alone with that."""
        if run is None or step.run is not RunState.ENDED or step.verdict is None:
            return
        failure = HostFailure.of(f"{job.project}/{job.job_id}", step.verdict, now)
        agent = writer.agent(writer.part_with(run, step.verdict.replica).agent_id) if failure is not None else None
        if failure is None or agent is None or agent.info.get("kind") == CLUSTER:
            return
        failures = blame.with_failure(map(HostFailure.read, agent.failures), failure)
        writer.set_failures(agent, failures)
        reason = blame.drain_reason(failures)
        if not reason or agent.draining:
            return
        is_alive = self._backend.agent_liveness.is_alive
        others = [row for row in writer.agents() if row is not agent and not row.draining and is_alive(row)]
        if blame.is_alone(([HostFailure.read(stored) for stored in row.failures] for row in others), now):
            writer.set_draining(agent, True, reason)
            logger.warning("Agent %s is drained: %s", agent.info["name"], reason)

    @staticmethod
    def _needs_logs(job: JobSnapshot) -> bool:
        """Whether the next step looks for the cause of a failure in the logs of many replicas, or for what a retry rule
        names, which takes a while."""
        replica = decisions.decider(job)
        if job.run is None or not job.run.complete or replica is None:
            return False
        return decisions.has_cause(replica) or retries.needs_log(job, replica)

    def _end_of_log(self, job: JobSnapshot) -> EndOfLog:
        """The end of the log of the replica that decides a run that is complete."""
        replica = decisions.decider(job)
        if job.run is None or replica is None or not job.run.complete:
            return EndOfLog()
        gang = job.run.number
        number = run_of(job, replica).number
        logs, count = self._backend.logs, self._backend.settings.last_lines
        if not decisions.has_cause(replica) and not retries.needs_log(job, replica):
            return EndOfLog(logs.tail(job.project, job.job_id, Stream(number, replica.task), count))

        entries = self._last_entries(job, number, replica.task)
        last_lines = tuple(entry.text for entry in entries[-count:] if count)
        matches = retries.log_matches(job, replica, [entry.text for entry in entries])
        if not decisions.has_cause(replica):
            return EndOfLog(last_lines, matches=matches)
        ends = [Cause.of(entries, replica.task)]
        if ends[0] is None or ends[0].is_consequence:
            others = [other.task for other in job.run.replicas if other.task != replica.task]
            ends += [Cause.of(self._last_entries(job, gang, task), task) for task in others[: causes.REPLICAS]]
        cause = causes.first_cause(filter(None, ends), replica.task)
        return EndOfLog(last_lines, cause, matches)


@dataclass(slots=True)
class Moves:
    """The jobs of one transaction, with the study of each trial among them. `left`: those whose next transition needs a
    transaction of its own. `telling`: those that have something new for their study, which the next tick reads in any
    case. `releases`: whether a queued job may start now."""

    studies: dict[int, int | None]
    telling: set[int]
    left: set[int] = field(default_factory=set)
    topics: list[str] = field(default_factory=list)
    releases: bool = False


def _agent_topics(reader: Reader, run: RunRow | None) -> list[str]:
    return [] if run is None else [agent_topic(part.agent_id) for part in reader.parts(run)]


def _apply(writer: Writer, job: JobRow, run: RunRow | None, step: decisions.Transition, now: datetime) -> None:
    verdict = step.verdict.model_dump(mode="json") if step.verdict is not None else None
    if step.restart is not None and run is not None:
        writer.add_restart(run, *step.restart, now)
    if step.run is not None and run is not None:
        values: dict[str, object] = {}
        if step.run is RunState.RUNNING:
            values = {"activity": ""}
        elif step.run is RunState.STOPPING and verdict is not None:
            values = {"verdict": verdict}  # of a stalled run: set when its replicas are stopped
        elif step.run is RunState.ENDED:
            values = {"ended_at": now, "verdict": verdict, "activity": ""}
        writer.move_run(run, step.run, now, step.run_message, **values)
    if step.job is not None:
        number = run.number if run is not None else None
        writer.move_job(job, step.job, now, step.job_message, run=number, **_job_values(job, step, verdict, now))


def _job_values(
    job: JobRow, step: decisions.Transition, verdict: dict[str, object] | None, now: datetime
) -> dict[str, object]:
    match step.job:
        case JobState.RUNNING:
            return {"started_at": job.started_at or now}
        case JobState.QUEUED:
            retries = job.retries_used if step.retries_used is None else step.retries_used
            queued_at = job.queued_at if step.is_still_waiting else now
            return {"queued_at": queued_at, "backoff_until": step.backoff_until, "retries_used": retries}
        case JobState.CANCELLING:
            return {"stop_message": step.stop_message}
        case _:
            return {"ended_at": now, "error_message": step.error_message, "verdict": verdict}
