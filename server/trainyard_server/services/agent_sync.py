"""What agents do: report how their runs stand, learn what they should have, and deliver log lines."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from trainyard_protocol.errors import InvalidArgument, NotFound, Violation
from trainyard_protocol.health import sized
from trainyard_protocol.states import ReplicaState, RunState
from trainyard_protocol.sync import (
    LogChunk,
    LogReceipt,
    ReplicaOrder,
    RunOrder,
    RunReport,
    SyncRequest,
    SyncResponse,
)
from trainyard_server.context import Backend
from trainyard_server.control.controller import Conductor
from trainyard_server.control.snapshots import live_runs, run_snapshot
from trainyard_server.domain.lifecycle import decisions as lifecycle
from trainyard_server.domain.lifecycle import stalls
from trainyard_server.storage.db.models import JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.repository import Event, Writer
from trainyard_server.storage.events.notifier import (
    AGENTS_TOPIC,
    agent_topic,
    job_topic,
    log_topic,
)
from trainyard_server.storage.logs.store import LogMismatch, Stream

logger = logging.getLogger(__name__)

_ALIVE = (ReplicaState.STARTING, ReplicaState.RUNNING)


class Syncing:
    def __init__(self, backend: Backend, conductor: Conductor) -> None:
        self._backend = backend
        self._conductor = conductor
        self._newest: dict[str, object] = {}  # the sync of each agent that came last

    async def sync(
        self, request: SyncRequest, still_connected: Callable[[], Awaitable[bool]] | None = None
    ) -> SyncResponse:
        """Takes the report, then answers with every run that the agent should have.

        While that is what the agent has seen already, the answer is held for up to `wait_s`; something new
        or a newer sync of the same agent ends the wait. `still_connected` says whether the caller listens.
        """
        agent_id = request.agent.agent_id
        me = self._newest[agent_id] = object()
        notifier = self._backend.notifier
        with notifier.subscribe(agent_topic(agent_id)) as news:
            notifier.publish(agent_topic(agent_id))
            await run_in_threadpool(self.record, request)
            answer = await run_in_threadpool(self.answer, agent_id)
            deadline = asyncio.get_running_loop().time() + min(
                request.wait_s, self._backend.settings.longest_hold_s
            )
            while answer.version == request.seen and not notifier.closed:
                if self._newest.get(agent_id) is not me:
                    if still_connected is not None and await still_connected():
                        logger.warning(
                            "Two agents call themselves %s (%s) at the same time: each needs a state "
                            "directory of its own.",
                            agent_id,
                            request.agent.name,
                        )
                    break
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                if await news.wait(left):
                    answer = await run_in_threadpool(self.answer, agent_id)
            if self._newest.get(agent_id) is me:
                del self._newest[agent_id]
            await run_in_threadpool(self._answered, agent_id, answer)
            return answer

    def record(self, request: SyncRequest) -> None:
        """Takes what the agent says of itself and of its runs. Old news changes nothing."""
        backend = self._backend
        now = backend.clock()
        touched = set()
        with backend.store.write() as writer:
            known = writer.agent(request.agent.agent_id)
            mine = {run.run_id: (run, gang) for run, gang in live_runs(writer, request.agent.agent_id)}
            left = sorted(
                {r.run_id for r in request.runs if any(s.state in _ALIVE for s in r.replicas)} - mine.keys()
            )
            news = (
                known is None
                or not backend.hearing.is_alive(known)
                or known.info != request.agent.model_dump(mode="json")
                or known.leftovers != left
            )
            writer.save_agent(request.agent, left, now)
            if known is not None and known.sent_version == request.seen:
                writer.grant_lease(known, known.sent_lease_s)
            for report in request.runs:
                if report.run_id not in mine:
                    continue  # over, or never here: the answer does not list it and the agent drops it
                run, gang = mine[report.run_id]
                seen = run_snapshot(run, gang)
                changes = lifecycle.observe(seen, report, now)
                if not run.acknowledged or run.activity != report.activity:
                    writer.note_run(run, report.activity, now, _news(run, report.activity))
                    touched.add(run.job_key)
                for change in changes:
                    writer.change_replica(run, change, now)
                    touched.add(run.job_key)
                if self._note_stalls(writer, run, seen, report, now):
                    touched.add(run.job_key)
            others = [agent.agent_id for agent in writer.agents() if agent.agent_id != request.agent.agent_id]
        if news:
            # There may be a lease from now on.
            backend.notifier.publish(AGENTS_TOPIC, *map(agent_topic, others))
        for key in touched:
            backend.notifier.publish(job_topic(key))
            self._conductor.advance(key)
        if touched or news:
            self._conductor.schedule()

    def answer(self, agent_id: str) -> SyncResponse:
        """All that the agent should have now. It has a lease as long as another agent could take its runs."""
        backend = self._backend
        with backend.store.read() as reader:
            others = [agent for agent in reader.agents() if agent.agent_id != agent_id]
            busy = {run.agent_id for run in reader.live_runs()}
            several = any(other.agent_id in busy or backend.hearing.is_alive(other) for other in others)
            lease_s = backend.settings.granted_lease_s if several else None
            orders = tuple(
                self._order(run, gang, reader.job_by_key(run.job_key))
                for run, gang in live_runs(reader, agent_id)
            )
        answer = SyncResponse(version="", lease_s=lease_s, runs=orders)
        version = hashlib.sha256(answer.model_dump_json().encode()).hexdigest()[:16]
        return answer.model_copy(update={"version": version})

    def append_logs(self, run_id: str, task: str, chunk: LogChunk) -> LogReceipt:
        """Takes what continues the replica's log; complete once the end is here and agrees with what we have, or once
        the job's log quota is used up. Lines that our disk has damaged meanwhile are asked for again.

        A log that cannot be made whole any more is closed as it is, with an event that says so: a job does
        not hang on it, and its reader is told. What comes for a run that is over (its host was lost and is back)
        is not taken any more, and the agent may let go of it. Raises NotFound for a replica that is not ours.
        """
        backend = self._backend
        with backend.store.read() as reader:
            run, replica = reader.run(run_id), reader.replica(run_id, task)
            if run is None or replica is None:
                raise NotFound(f"There is no replica {task} of a run {run_id} here.")
            job = reader.job_by_key(run.job_key)
        if chunk.start < 0:
            raise InvalidArgument(Violation("start", f"must be 0 or more; this is {chunk.start}."))
        logs, stream = backend.logs, Stream(run.number, task)
        if replica.log_complete or run.state is RunState.ENDED:
            have = logs.counts(job.project, job.job_id).get(stream, 0)
            damaged = logs.next(job.project, job.job_id, stream) < have
            if run.state is RunState.ENDED or replica.log_kept is not None or not damaged:
                return LogReceipt(next=have, complete=True)
        quota = backend.settings.log_quota
        taken = logs.append(job.project, job.job_id, stream, chunk.start, chunk.lines, quota)
        if taken.new:
            begin = taken.next - taken.new  # of damaged logs another one: those are read anew at their end
            first = max(0, begin - chunk.start)
            fresh = chunk.lines[first : first + taken.new]
            backend.steps.take(run_id, task, begin, fresh, partial(self._kept_digest, run_id, task))
            backend.notifier.publish(log_topic(job.key))
        complete, kept, event = False, None, None
        if taken.full:
            complete, kept = True, logs.counts(job.project, job.job_id).get(stream, 0)
        elif chunk.end is not None:
            try:
                complete = logs.verify(job.project, job.job_id, stream, chunk.end)
                kept = chunk.end.count if chunk.end.cut else None
            except LogMismatch as mismatch:
                complete = True
                said = f"The log of {task} is not what the replica wrote: {mismatch}."
                event = Event("log-damaged", said, run.number, task)
                logger.exception("Job %s, run %d, %s: log mismatch", job.job_id, run.number, task)
        if complete:
            if kept is not None:
                event = Event("log-quota", _quota_notice(task, kept, quota), run.number, task)
            have = logs.counts(job.project, job.job_id).get(stream, 0)
            steps = backend.steps.whole(job.project, job.job_id, stream, run_id, have)
            with backend.store.write() as writer:
                writer.note_steps(run_id, task, steps, complete=True)
                now, end = backend.clock(), chunk.end if not taken.full else None
                writer.complete_log(run, task, now, event, end=end, kept=kept)
            backend.notifier.publish(job_topic(job.key))
            self._conductor.advance(job.key)
            self._conductor.schedule()  # what this run held may be free now
        return LogReceipt(next=logs.next(job.project, job.job_id, stream), complete=complete)

    def _kept_digest(self, run_id: str, task: str) -> Mapping[str, Any] | None:
        with self._backend.store.read() as reader:
            return reader.digests([run_id]).get((run_id, task))

    @staticmethod
    def _note_stalls(
        writer: Writer, run: RunRow, known: lifecycle.Run, report: RunReport, now: datetime
    ) -> bool:
        """What the report says of replicas that stand still. Whether any of it is news."""
        changes, after = lifecycle.notice(known, report)
        for task, stall, stacks in changes:
            writer.note_stall(run, task, stall, stacks)
        before, found = stalls.diagnose(known.members), stalls.diagnose(after.members)
        if found is not None and before is None:
            writer.add_event(run.job_key, Event("stalled", found.message, run.number, found.task), now)
        if found is None and before is not None:
            message = f"{before.task} moves on." if len(known.replicas) == 1 else "The replicas move on."
            writer.add_event(run.job_key, Event("moves-on", message, run.number, before.task), now)
        return bool(changes)

    def package(self, sha256: str, filename: str) -> Path:
        """Where an uploaded package lies. Raises NotFound."""
        return self._backend.staging.path(sha256, filename)

    def _answered(self, agent_id: str, answer: SyncResponse) -> None:
        """From now on the agent may be silent for as long as it is told.

        That it may be so for ever holds at once. A lease holds once the agent says that it has seen it, for an
        answer may be lost, and an agent that knows of no lease stops nothing; until then the longer of two holds.
        """
        with self._backend.store.write() as writer:
            agent = writer.agent(agent_id)
            if agent is None:
                return
            held = agent.lease_s
            lease_s = None if answer.lease_s is None or held is None else max(held, answer.lease_s)
            writer.answer_agent(agent, answer.version, answer.lease_s, self._backend.clock())
            writer.grant_lease(agent, lease_s)
        self._backend.hearing.silent_s(agent)  # counts from now on, however late the next tick looks

    def _order(self, run: RunRow, gang: list[ReplicaRow], job: JobRow) -> RunOrder:
        return RunOrder(
            run_id=run.run_id,
            number=run.number,
            target="stop" if run.state is RunState.STOPPING else "run",
            project=job.project,
            job_id=job.job_id,
            training_input=job.training_input,
            replicas=tuple(
                ReplicaOrder(
                    task=replica.task,
                    machine_type=replica.machine_type,
                    cpus=tuple(replica.cpus),
                    memory_bytes=replica.memory_bytes,
                    gpus=tuple(replica.gpus),
                )
                for replica in gang
            ),
            grace_s=self._backend.settings.grace_s,
            log_quota_bytes=self._backend.settings.log_quota,
            stall=stalls.policy_of(job.labels, self._backend.settings.stall_policy),
        )


def _news(run: RunRow, activity: str) -> list[Event]:
    """What the job's history says of a run's preparation."""
    news = []
    if not run.acknowledged:
        news.append(Event("acknowledged", "Waiting for training program to start.", run.number))
    if activity and activity != run.activity:
        news.append(Event("preparing", f"{activity[0].upper()}{activity[1:]}.", run.number))
    return news


def _quota_notice(task: str, kept: int, quota: int) -> str:
    of = f" of {sized(quota)}" if quota else ""
    return (
        f"The log of {task} goes on, but the job's log quota{of} is used up: "
        f"its lines from number {kept} on are not kept."
    )
