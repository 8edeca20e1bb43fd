"""Controller: applies the decisions of the lifecycle and the scheduler, one transaction for each.

Every method may be repeated at any time and by several threads: each step reads the state again inside its
transaction, and a process that was killed between two steps continues with the next one after its restart.
"""

import logging
from datetime import datetime

from trainyard_protocol.config.fields import rfc3339
from trainyard_protocol.states import JobState, ReplicaState, RunState
from trainyard_protocol.sync import AgentInfo, LogLine
from trainyard_protocol.views import LogEntry
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import (
    agents_now,
    job_snapshot,
    job_snapshots,
    live_runs,
    queued_snapshots,
    run_snapshot,
)
from trainyard_server.domain.lifecycle import causes, decisions
from trainyard_server.domain.lifecycle.causes import Cause
from trainyard_server.domain.scheduling import scheduler
from trainyard_server.domain.snapshots import JobSnapshot
from trainyard_server.storage.db.models import JobRow, RunRow
from trainyard_server.storage.db.repository import Event, Writer
from trainyard_server.storage.events.notifier import JOBS_TOPIC, agent_topic, job_topic, log_topic
from trainyard_server.storage.failures import FailureLog, failure_reason, is_database_failure
from trainyard_server.storage.logs.store import SERVICE, Stream

logger = logging.getLogger(__name__)


class Controller:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        settings = backend.settings
        self._policy = decisions.RetryPolicy(
            settings.retries, settings.backoff_first_s, settings.backoff_max_s, settings.stall_action
        )
        self._logged: set[int] = set()  # jobs whose service log this process has brought up to date
        self._unlogged: set[int] = set()  # jobs whose service log could not be written
        self._failures = FailureLog(logger)

    def tick(self) -> None:
        """Check everything that changes with time: silent agents, time limits, the queue."""
        self.watch_agents()
        now = self._backend.clock()
        with self._backend.store.read() as reader:
            unfinished = job_snapshots(reader)
        for job in unfinished:
            # The first tick writes the service lines that a killed process did not.
            try:
                if job.key not in self._logged or decisions.step(job, now, self._policy) is not None:
                    self.advance(job.key)
            except Exception as error:
                if is_database_failure(error):
                    raise  # the next job would fail too
                self._failures.record(f"Job {job.job_id} of {job.project} could not be moved forward", error)
        self._logged &= {job.key for job in unfinished}
        self._retry_logs()
        self.schedule()

    def observe_agents(self) -> None:
        """Record the heartbeats of agents and retry failed logs, while another process ticks."""
        with self._backend.store.read() as reader:
            for agent in reader.agents():
                self._backend.agent_liveness.silent_s(agent)
        self._logged.clear()  # the process that ticks may be killed
        self._retry_logs()

    def advance(self, key: int) -> None:
        """Apply every transition that the job is ready for, and write its missing service lines."""
        while self._step(key):
            pass
        self.write_log(key)

    def schedule(self) -> None:
        """Start the jobs that can start; record why each other job waits."""
        now = self._backend.clock()
        placed = []
        with self._backend.store.write() as writer:
            jobs = {job.key: job for job in writer.queued()}
            if not jobs:
                return
            plan = scheduler.plan(
                queued_snapshots(writer, jobs.values()),
                agents_now(writer, self._backend),
                now,
                self._backend.quotas,
            )
            for placement in plan.placements:
                job = jobs[placement.key]
                run = writer.add_run(
                    job, placement.agent_id, placement.assignments, now, "Waiting for job to be provisioned."
                )
                if placement.scaled:
                    writer.add_event(job.key, Event("scaled-down", placement.scaled, run.number), now)
                placed.append((job.key, placement.agent_id))
            changed = {key: why for key, why in plan.waiting.items() if _differs(jobs[key], why)}
            writer.record_waiting(changed)
            noted = [key for key, why in plan.waiting.items() if _is_new_kind(jobs[key], why)]
            for key in noted:
                message = f"Job {jobs[key].job_id} waits: {plan.waiting[key].reason}."
                writer.add_event(key, Event("waiting", message), now)
        for key, agent_id in placed:
            self._backend.notifier.publish(job_topic(key), agent_topic(agent_id))
        if changed:
            self._backend.notifier.publish(JOBS_TOPIC)
        for key in [*(key for key, _ in placed), *noted]:
            self.write_log(key)

    def watch_agents(self) -> None:
        """Update the runs of agents that are silent or lost."""
        now = self._backend.clock()
        settings = self._backend.settings
        with self._backend.store.read() as reader:
            busy = {run.agent_id for run in reader.live_runs()}
            agents = reader.agents()
        silent_s = self._backend.agent_liveness.silent_s
        silent = [agent.agent_id for agent in agents if silent_s(agent) > settings.silent_after_s]
        for agent_id in busy.intersection(silent):
            try:
                self._watch_silent(agent_id, now)
            except Exception as error:
                if is_database_failure(error):
                    raise
                self._failures.record(f"The runs of the silent agent {agent_id} could not be updated", error)

    def write_log(self, key: int) -> None:
        """Write the service's lines; a later tick retries those that cannot be written now."""
        try:
            self.write_service_lines(key)
        except Exception as error:
            if failure_reason(error) is None and not isinstance(error, OSError):
                raise
            self._unlogged.add(key)
            self._failures.record("The service's lines of a job cannot be written", error)
        else:
            self._unlogged.discard(key)
            self._logged.add(key)

    def _retry_logs(self) -> None:
        for key in list(self._unlogged):
            self.write_log(key)

    def write_service_lines(self, key: int) -> None:
        """Append the missing lines to the service's log: its n-th line is the n-th event with a message.

        The missing lines are derived from the length of the log, so each line is written once, however often this
        is called.
        """
        backend = self._backend
        with backend.store.read() as reader:
            job = reader.find_job(key)
            if job is None:
                return  # it was deleted
            have = backend.logs.count(job.project, job.job_id, SERVICE)
            events = reader.service_lines(key, skip=have)
            lines = [LogLine(time=rfc3339(e.time), stream="stdout", text=e.message) for e in events]
        if lines and backend.logs.append(job.project, job.job_id, SERVICE, have, lines).new:
            backend.notifier.publish(log_topic(key))

    def _watch_silent(self, agent_id: str, now: datetime) -> None:
        """Mark the replicas of a silent agent as UNKNOWN, or as lost after its lease."""
        settings = self._backend.settings
        touched = set()
        self._backend.progress.flush()  # a lost replica delivers no more lines
        with self._backend.store.write() as writer:
            agent = writer.agent(agent_id)
            silent_s = 0.0 if agent is None else self._backend.agent_liveness.silent_s(agent)
            if agent is None or silent_s <= settings.silent_after_s:
                return  # the agent is back
            name = AgentInfo.model_validate(agent.info).name
            # The agent may hold a lease of a server with other settings: wait for that one, and the grace period.
            limit_s = max(
                settings.lease_s, 0.0 if agent.lease_s is None else agent.lease_s + settings.grace_s
            )
            overdue = silent_s > limit_s
            for run, replicas in live_runs(writer, agent_id):
                known = run_snapshot(run, replicas)
                changes = decisions.host_lost(known, name, limit_s, now)
                lost = overdue and (
                    agent.lease_s is not None
                    or decisions.may_give_up(job_snapshot(writer, run.job_key), changes, now, self._policy)
                )
                for change in changes if lost else decisions.silent_changes(known, name):
                    writer.change_replica(run, change, now)
                    touched.add(run.job_key)
                for replica in known.replicas if lost else ():
                    if replica.state is ReplicaState.EXITED and not replica.log_closed:
                        message = f"The log of {replica.task} may lack its end: its host was lost."
                        event = Event("log-damaged", message, run.number, replica.task)
                        writer.complete_log(run, replica.task, now, event)
                        touched.add(run.job_key)
        for key in touched:
            self._backend.notifier.publish(job_topic(key))
            try:
                self.advance(key)
            except Exception as error:
                if is_database_failure(error):
                    raise
                self._failures.record(f"Job number {key} could not be moved forward", error)

    def _step(self, key: int) -> bool:
        """Apply the next transition of a job. False if there is none."""
        backend = self._backend
        with backend.store.read() as reader:
            job = job_snapshot(reader, key)
        now = backend.clock()
        last_lines, cause = self._end_of_log(job)
        step = decisions.step(job, now, self._policy, last_lines, cause)
        if step is None:
            return False  # the usual case, without a write transaction
        with backend.store.write() as writer:
            if job_snapshot(writer, key) != job:
                return True  # it has changed since it was read: decide again
            row = writer.job_by_key(key)
            run = writer.live_run(key)
            _apply(writer, row, run, step, now)
        topics = [job_topic(key)]
        if run is not None:
            topics.append(agent_topic(run.agent_id))
        backend.notifier.publish(*topics)
        return True

    def _end_of_log(self, job: JobSnapshot) -> tuple[tuple[str, ...], Cause | None]:
        """The last lines of the replica that decides a run that is complete, and the cause of its failure."""
        replica = decisions.decider(job)
        if job.run is None or replica is None or not job.run.complete:
            return (), None
        number = job.run.number
        logs, count = self._backend.logs, self._backend.settings.last_lines
        if not decisions.has_cause(replica):
            return logs.tail(job.project, job.job_id, Stream(number, replica.task), count), None

        def end(task: str) -> tuple[LogEntry, ...]:
            stream = Stream(number, task)
            return logs.last_entries(job.project, job.job_id, stream, causes.LINES, causes.CHARACTERS)

        entries = end(replica.task)
        found = [Cause.of(entries, replica.task)]
        if found[0] is None or found[0].is_consequence:
            others = [other.task for other in job.run.replicas if other.task != replica.task]
            found += [Cause.of(end(task), task) for task in others[: causes.REPLICAS]]
        cause = causes.first_cause(filter(None, found), replica.task)
        return tuple(entry.text for entry in entries[-count:] if count), cause


def _apply(
    writer: Writer, job: JobRow, run: RunRow | None, step: decisions.Transition, now: datetime
) -> None:
    verdict = step.verdict.model_dump(mode="json") if step.verdict is not None else None
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
        writer.move_job(
            job, step.job, now, step.job_message, run=number, **_job_values(job, step, verdict, now)
        )


def _job_values(
    job: JobRow, step: decisions.Transition, verdict: dict[str, object] | None, now: datetime
) -> dict[str, object]:
    match step.job:
        case JobState.RUNNING:
            return {"started_at": job.started_at or now}
        case JobState.QUEUED:
            retries = job.retries_used if step.retries_used is None else step.retries_used
            return {"queued_at": now, "backoff_until": step.backoff_until, "retries_used": retries}
        case JobState.CANCELLING:
            return {"stop_message": step.stop_message, "waiting": "", "waiting_kind": "", "position": 0}
        case _:
            return {"ended_at": now, "error_message": step.error_message, "verdict": verdict}


def _differs(job: JobRow, why: scheduler.Waiting) -> bool:
    return (job.waiting_kind, job.waiting, job.position) != (why.kind, why.reason, why.position)


def _is_new_kind(job: JobRow, why: scheduler.Waiting) -> bool:
    """Whether the waiting is an event: only for a reason of a new kind, since positions change all the time."""
    return why.kind not in (job.waiting_kind, "backoff")
