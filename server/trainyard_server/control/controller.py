"""Moves jobs forward: applies what `lifecycle` and `scheduler` decide, one transaction for each decision.

Everything here may be repeated at any time and by several threads at once: each step reads the state anew
inside its transaction, and a process that dies between two steps goes on with the next one when it is back.
"""

import logging
from datetime import datetime

from trainyard_protocol.fields import rfc3339
from trainyard_protocol.states import JobState, ReplicaState, RunState
from trainyard_protocol.sync import AgentInfo, LogLine
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import (
    agents_now,
    job_snapshot,
    job_snapshots,
    live_runs,
    queued_snapshots,
    run_snapshot,
)
from trainyard_server.domain.lifecycle import decisions as lifecycle
from trainyard_server.domain.scheduling import scheduler
from trainyard_server.storage.db.models import JobRow, RunRow
from trainyard_server.storage.db.repository import Event, Writer
from trainyard_server.storage.events.notifier import JOBS_TOPIC, agent_topic, job_topic, log_topic
from trainyard_server.storage.failures import Troubles, is_database, reason
from trainyard_server.storage.logs.store import SERVICE, Stream

logger = logging.getLogger(__name__)


class Conductor:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        settings = backend.settings
        self._policy = lifecycle.Policy(
            settings.retries, settings.backoff_first_s, settings.backoff_max_s, settings.stall_action
        )
        self._said: set[int] = set()  # jobs whose service log this process has brought up to date
        self._unsaid: set[int] = set()  # jobs whose service log could not be written
        self._troubles = Troubles(logger)

    def tick(self) -> None:
        """Looks at everything that time alone can change: silent agents, time limits, the queue."""
        self.watch_agents()
        now = self._backend.clock()
        with self._backend.store.read() as reader:
            unfinished = job_snapshots(reader)
        for job in unfinished:
            # What a process that died left unsaid is said at the first tick that this one makes.
            try:
                if job.key not in self._said or lifecycle.step(job, now, self._policy) is not None:
                    self.advance(job.key)
            except Exception as error:
                if is_database(error):
                    raise  # the next job would meet the same
                self._troubles.note(f"Job {job.job_id} of {job.project} could not be moved forward", error)
        self._said &= {job.key for job in unfinished}
        self._say_unsaid()
        self.schedule()

    def look_on(self) -> None:
        """In place of a tick, while another process ticks: what only this one knows of."""
        with self._backend.store.read() as reader:
            for agent in reader.agents():
                self._backend.hearing.silent_s(agent)
        self._said.clear()  # the one that ticks may die in between
        self._say_unsaid()

    def advance(self, key: int) -> None:
        """Takes every step that the job can take now, and writes what its service log lacks."""
        while self._step(key):
            pass
        self.say(key)

    def schedule(self) -> None:
        """Starts what can start; notes for the rest of the queue why it waits."""
        now = self._backend.clock()
        placed = []
        with self._backend.store.write() as writer:
            jobs = {job.key: job for job in writer.queued()}
            if not jobs:
                return
            plan = scheduler.plan(
                queued_snapshots(jobs.values()),
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
            writer.note_waiting(changed)
            noted = [key for key, why in plan.waiting.items() if _is_news(jobs[key], why)]
            for key in noted:
                message = f"Job {jobs[key].job_id} waits: {plan.waiting[key].reason}."
                writer.add_event(key, Event("waiting", message), now)
        for key, agent_id in placed:
            self._backend.notifier.publish(job_topic(key), agent_topic(agent_id))
        if changed:
            self._backend.notifier.publish(JOBS_TOPIC)
        for key in [*(key for key, _ in placed), *noted]:
            self.say(key)

    def watch_agents(self) -> None:
        """Marks what is known of the runs of agents that are silent, or lost."""
        now = self._backend.clock()
        settings = self._backend.settings
        with self._backend.store.read() as reader:
            busy = {run.agent_id for run in reader.live_runs()}
            agents = reader.agents()
        silent_s = self._backend.hearing.silent_s
        silent = [agent.agent_id for agent in agents if silent_s(agent) > settings.silent_after_s]
        for agent_id in busy.intersection(silent):
            try:
                self._watch_silent(agent_id, now)
            except Exception as error:
                if is_database(error):
                    raise
                self._troubles.note(f"The runs of the silent agent {agent_id} could not be looked at", error)

    def say(self, key: int) -> None:
        """Writes the service's lines; those that cannot be written now are written by a later tick."""
        try:
            self.write_service_lines(key)
        except Exception as error:
            if reason(error) is None and not isinstance(error, OSError):
                raise
            self._unsaid.add(key)
            self._troubles.note("The service's lines of a job cannot be written", error)
        else:
            self._unsaid.discard(key)
            self._said.add(key)

    def _say_unsaid(self) -> None:
        for key in list(self._unsaid):
            self.say(key)

    def write_service_lines(self, key: int) -> None:
        """Brings the service's log up to the job's events: its n-th line is the n-th event with a message.

        What is missing is derived from what the log has, so a line is written exactly once whenever and
        however often this is called.
        """
        backend = self._backend
        with backend.store.read() as reader:
            job = reader.job_by_key(key)
            have = backend.logs.next(job.project, job.job_id, SERVICE)
            events = reader.service_lines(key, skip=have)
            lines = [LogLine(time=rfc3339(e.time), stream="stdout", text=e.message) for e in events]
        if lines and backend.logs.append(job.project, job.job_id, SERVICE, have, lines).new:
            backend.notifier.publish(log_topic(key))

    def _watch_silent(self, agent_id: str, now: datetime) -> None:
        """Notes of each run of a silent agent what is known of it: nothing, or that it is lost."""
        settings = self._backend.settings
        touched = set()
        self._backend.steps.flush()  # no more lines may come of what is lost
        with self._backend.store.write() as writer:
            agent = writer.agent(agent_id)
            silent_s = 0.0 if agent is None else self._backend.hearing.silent_s(agent)
            if agent is None or silent_s <= settings.silent_after_s:
                return  # it is back
            name = AgentInfo.model_validate(agent.info).name
            # An agent may hold a lease of a server with other settings: it is given that time, and the grace.
            limit_s = max(
                settings.lease_s, 0.0 if agent.lease_s is None else agent.lease_s + settings.grace_s
            )
            overdue = silent_s > limit_s
            for run, replicas in live_runs(writer, agent_id):
                known = run_snapshot(run, replicas)
                changes = lifecycle.host_lost(known, name, limit_s, now)
                lost = overdue and (
                    agent.lease_s is not None
                    or lifecycle.may_give_up(job_snapshot(writer, run.job_key), changes, now, self._policy)
                )
                for change in changes if lost else lifecycle.silence(known, name):
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
                if is_database(error):
                    raise
                self._troubles.note(f"Job number {key} could not be moved forward", error)

    def _step(self, key: int) -> bool:
        """One step of one job; False when there was nothing to do."""
        backend = self._backend
        with backend.store.read() as reader:
            job = job_snapshot(reader, key)
        now = backend.clock()
        step = lifecycle.step(job, now, self._policy, self._last_lines(job))
        if step is None:
            return False  # the usual case, decided without making anybody wait
        with backend.store.write() as writer:
            if job_snapshot(writer, key) != job:
                return True  # it has changed since it was read: decide anew
            row = writer.job_by_key(key)
            run = writer.live_run(key)
            _apply(writer, row, run, step, now)
        topics = [job_topic(key)]
        if run is not None:
            topics.append(agent_topic(run.agent_id))
        backend.notifier.publish(*topics)
        return True

    def _last_lines(self, job: lifecycle.Job) -> tuple[str, ...]:
        replica = lifecycle.decider(job)
        if job.run is None or replica is None or not job.run.over:
            return ()
        stream = Stream(job.run.number, replica.task)
        return self._backend.logs.tail(job.project, job.job_id, stream, self._backend.settings.last_lines)


def _apply(writer: Writer, job: JobRow, run: RunRow | None, step: lifecycle.Step, now: datetime) -> None:
    verdict = step.verdict.model_dump(mode="json") if step.verdict is not None else None
    if step.run is not None and run is not None:
        values: dict[str, object] = {}
        if step.run is RunState.RUNNING:
            values = {"activity": ""}
        elif step.run is RunState.STOPPING and verdict is not None:
            values = {"verdict": verdict}  # of a run that stalled: it is given when its replicas are stopped
        elif step.run is RunState.ENDED:
            values = {"ended_at": now, "verdict": verdict, "activity": ""}
        writer.move_run(run, step.run, now, step.run_message, **values)
    if step.job is not None:
        number = run.number if run is not None else None
        writer.move_job(
            job, step.job, now, step.job_message, run=number, **_job_values(job, step, verdict, now)
        )


def _job_values(
    job: JobRow, step: lifecycle.Step, verdict: dict[str, object] | None, now: datetime
) -> dict[str, object]:
    match step.job:
        case JobState.RUNNING:
            return {"started_at": job.started_at or now}
        case JobState.QUEUED:
            retries = job.retries_used if step.retries_used is None else step.retries_used
            return {"queued_at": now, "not_before": step.not_before, "retries_used": retries}
        case JobState.CANCELLING:
            return {"stop_message": step.stop_message, "waiting": "", "waiting_kind": "", "position": 0}
        case _:
            return {"ended_at": now, "error_message": step.error_message, "verdict": verdict}


def _differs(job: JobRow, why: scheduler.Waiting) -> bool:
    return (job.waiting_kind, job.waiting, job.position) != (why.kind, why.reason, why.position)


def _is_news(job: JobRow, why: scheduler.Waiting) -> bool:
    """Only a reason of a new kind is an event: how many are ahead changes all the time."""
    return why.kind not in (job.waiting_kind, "rest")
