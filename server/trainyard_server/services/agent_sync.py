"""Use cases of agents: report their runs, get their orders, and deliver log lines."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from anyio import to_thread

from trainyard_protocol.errors import NotFound
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
from trainyard_protocol.training_input import TrainingInput
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.control.snapshots import live_runs, run_snapshot
from trainyard_server.domain.lifecycle import decisions, stalls
from trainyard_server.domain.reports import bounded_sync, checked_chunk
from trainyard_server.domain.snapshots import RunSnapshot
from trainyard_server.storage.db.models import JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.reader import Reader
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


class AgentSync:
    def __init__(self, backend: Backend, controller: Controller) -> None:
        self._backend = backend
        self._controller = controller
        self._newest: dict[str, object] = {}  # the latest sync of each agent

    async def sync(
        self, request: SyncRequest, still_connected: Callable[[], Awaitable[bool]] | None = None
    ) -> SyncResponse:
        """Record the report, then answer with every run that the agent should have.

        While the agent has seen that answer, it is held for up to `wait_s`; a change or a newer sync of the same
        agent ends the wait. `still_connected` is whether the caller still waits.
        """
        request = bounded_sync(request, self._backend.clock())
        agent_id = request.agent.agent_id
        me = self._newest[agent_id] = object()
        notifier = self._backend.notifier
        with notifier.subscribe(agent_topic(agent_id)) as events:
            notifier.publish(agent_topic(agent_id))
            await to_thread.run_sync(self.record, request)
            answer = await to_thread.run_sync(self.answer, agent_id)
            deadline = asyncio.get_running_loop().time() + min(
                request.wait_s, self._backend.settings.longest_hold_s
            )
            while answer.version == request.seen and not notifier.closed:
                if self._newest.get(agent_id) is not me:
                    if still_connected is not None and await still_connected():
                        logger.warning(
                            "Two agents use the id %s (%s) at the same time: each needs a state "
                            "directory of its own.",
                            agent_id,
                            request.agent.name,
                        )
                    break
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                if await events.wait(left):
                    answer = await to_thread.run_sync(self.answer, agent_id)
            if self._newest.get(agent_id) is me:
                del self._newest[agent_id]
            await to_thread.run_sync(self._answered, agent_id, answer)
            return answer

    def record(self, request: SyncRequest) -> None:
        """Store the agent's report of itself and its runs. An old report changes nothing."""
        backend = self._backend
        now = backend.clock()
        touched = set()
        with backend.store.write() as writer:
            known = writer.agent(request.agent.agent_id)
            mine = {run.run_id: (run, gang) for run, gang in live_runs(writer, request.agent.agent_id)}
            left = sorted(
                {r.run_id for r in request.runs if any(s.state in _ALIVE for s in r.replicas)} - mine.keys()
            )
            changed = (
                known is None
                or not backend.agent_liveness.is_alive(known)
                or known.info != request.agent.model_dump(mode="json")
                or known.orphaned_runs != left
            )
            writer.save_agent(request.agent, left, now)
            if known is not None and known.sent_version == request.seen:
                writer.grant_lease(known, known.sent_lease_s)
            for report in request.runs:
                if report.run_id not in mine:
                    continue  # ended or unknown: the answer does not list it, so the agent drops it
                run, gang = mine[report.run_id]
                seen = run_snapshot(run, gang)
                changes = decisions.observe(seen, report, now)
                if report.runtime is not None and run.runtime != report.runtime:
                    writer.record_runtime(run, report.runtime, report.runtime_reason, now)
                    touched.add(run.job_key)
                if not run.acknowledged or run.activity != report.activity:
                    writer.record_activity(
                        run, report.activity, now, _preparation_events(run, report.activity)
                    )
                    touched.add(run.job_key)
                for change in changes:
                    writer.change_replica(run, change, now)
                    touched.add(run.job_key)
                if self._note_stalls(writer, run, seen, report, now):
                    touched.add(run.job_key)
            others = [agent.agent_id for agent in writer.agents() if agent.agent_id != request.agent.agent_id]
        if changed:
            # Their leases may change.
            backend.notifier.publish(AGENTS_TOPIC, *map(agent_topic, others))
        for key in touched:
            backend.notifier.publish(job_topic(key))
            self._controller.advance(key)
        if touched or changed:
            self._controller.schedule()

    def answer(self, agent_id: str) -> SyncResponse:
        """All orders for the agent. It gets a lease while another agent could run its jobs."""
        backend = self._backend
        with backend.store.read() as reader:
            others = [agent for agent in reader.agents() if agent.agent_id != agent_id]
            busy = {run.agent_id for run in reader.live_runs()}
            several = any(
                other.agent_id in busy or backend.agent_liveness.is_alive(other) for other in others
            )
            lease_s = backend.settings.granted_lease_s if several else None
            orders = self._orders(reader, agent_id)
        answer = SyncResponse(version="", lease_s=lease_s, runs=orders)
        version = hashlib.sha256(answer.model_dump_json().encode()).hexdigest()[:16]
        return answer.model_copy(update={"version": version})

    def append_logs(self, run_id: str, task: str, chunk: LogChunk) -> LogReceipt:
        """Add the lines that continue the replica's log. Complete once its end is here and agrees with the lines that
        the server has, or once the job's log quota is used up.

        A log that can never be completed is closed as it is, with an event: no job waits for it. The lines of a run
        that has ended (its machine was lost and is back) are dropped. Raises NotFound for an unknown replica.
        """
        backend = self._backend
        chunk = checked_chunk(chunk)
        with backend.store.read() as reader:
            run, replica = reader.run(run_id), reader.replica(run_id, task)
            if run is None or replica is None:
                raise NotFound(f"There is no replica {task} of a run {run_id} here.")
            job = reader.job_by_key(run.job_key)
        logs, stream = backend.logs, Stream(run.number, task)
        if replica.log_complete or run.state is RunState.ENDED:
            return LogReceipt(next=logs.count(job.project, job.job_id, stream), complete=True)
        quota = backend.settings.log_quota
        appended = logs.append(job.project, job.job_id, stream, chunk.start, chunk.lines, quota)
        if appended.new:
            begin = appended.next - appended.new
            first = begin - chunk.start
            fresh = chunk.lines[first : first + appended.new]
            backend.progress.add(run_id, task, begin, fresh, partial(self._stored_metrics, run_id, task))
            backend.notifier.publish(log_topic(job.key))
        complete, stored, event = False, None, None
        if appended.full:
            complete, stored = True, appended.next
        elif chunk.end is not None:
            try:
                complete = logs.verify(job.project, job.job_id, stream, chunk.end)
                stored = chunk.end.count if chunk.end.cut else None
            except LogMismatch as mismatch:
                complete = True
                message = f"The log of {task} is not what the replica wrote: {mismatch}."
                event = Event("log-damaged", message, run.number, task)
                logger.exception("Job %s, run %d, %s: log mismatch", job.job_id, run.number, task)
        if complete:
            if stored is not None:
                event = Event("log-quota", _quota_notice(task, stored, quota), run.number, task)
            steps = backend.progress.final_values(job.project, job.job_id, stream, run_id, appended.next)
            with backend.store.write() as writer:
                writer.record_progress(run_id, task, steps, complete=True)
                now, end = backend.clock(), chunk.end if not appended.full else None
                writer.complete_log(run, task, now, event, end=end, stored=stored)
            backend.notifier.publish(job_topic(job.key))
            self._controller.advance(job.key)
            self._controller.schedule()  # what this run held may be free now
        return LogReceipt(next=appended.next, complete=complete)

    def _stored_metrics(self, run_id: str, task: str) -> Mapping[str, Any] | None:
        with self._backend.store.read() as reader:
            return reader.digests([run_id]).get((run_id, task))

    @staticmethod
    def _note_stalls(
        writer: Writer, run: RunRow, known: RunSnapshot, report: RunReport, now: datetime
    ) -> bool:
        """Record the stalls of the report. Whether anything changed."""
        changes, after = decisions.stall_changes(known, report)
        for task, stall, stacks in changes:
            writer.record_stall(run, task, stall, stacks)
        before, now_stalled = stalls.diagnose(known.members), stalls.diagnose(after.members)
        if now_stalled is not None and before is None:
            writer.add_event(
                run.job_key, Event("stalled", now_stalled.message, run.number, now_stalled.task), now
            )
        if now_stalled is None and before is not None:
            message = f"{before.task} moves on." if len(known.replicas) == 1 else "The replicas move on."
            writer.add_event(run.job_key, Event("moves-on", message, run.number, before.task), now)
        return bool(changes)

    def package(self, sha256: str, filename: str) -> Path:
        """The path of an uploaded package. Raises NotFound."""
        return self._backend.uploads.path(sha256, filename)

    def _answered(self, agent_id: str, answer: SyncResponse) -> None:
        """Record the lease of the answer.

        No lease holds at once. A lease holds when the agent has acknowledged it: the answer may be lost, and an agent
        without a lease stops nothing. Until then the longer of two leases holds.
        """
        with self._backend.store.write() as writer:
            agent = writer.agent(agent_id)
            if agent is None:
                return
            held = agent.lease_s
            lease_s = None if answer.lease_s is None or held is None else max(held, answer.lease_s)
            writer.answer_agent(agent, answer.version, answer.lease_s, self._backend.clock())
            writer.grant_lease(agent, lease_s)
        self._backend.agent_liveness.silent_s(
            agent
        )  # record the heartbeat now, however late the next tick is

    def _orders(self, reader: Reader, agent_id: str) -> tuple[RunOrder, ...]:
        orders = []
        for run, gang in live_runs(reader, agent_id):
            job = reader.job_by_key(run.job_key)
            try:
                training_input, _ = reader.job_input(job)
            except Exception:  # the other runs of the agent go on
                logger.exception("Job %s of %s cannot be read", job.job_id, job.project)
            else:
                orders.append(self._order(run, gang, job, training_input))
        return tuple(orders)

    def _order(
        self, run: RunRow, gang: list[ReplicaRow], job: JobRow, training_input: TrainingInput
    ) -> RunOrder:
        return RunOrder(
            run_id=run.run_id,
            number=run.number,
            target="stop" if run.state is RunState.STOPPING else "run",
            project=job.project,
            job_id=job.job_id,
            training_input=training_input,
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
            job_dir="" if training_input.job_dir else self._backend.job_dir(job.project, job.job_id, ""),
        )


def _preparation_events(run: RunRow, activity: str) -> list[Event]:
    """Events of the preparation of a run."""
    events = []
    if not run.acknowledged:
        events.append(Event("acknowledged", "Waiting for training program to start.", run.number))
    if activity and activity != run.activity:
        events.append(Event("preparing", f"{activity[0].upper()}{activity[1:]}.", run.number))
    return events


def _quota_notice(task: str, stored: int, quota: int) -> str:
    of = f" of {sized(quota)}" if quota else ""
    return (
        f"The log of {task} goes on, but the job's log quota{of} is used up: "
        f"its lines from number {stored} on are not kept."
    )
