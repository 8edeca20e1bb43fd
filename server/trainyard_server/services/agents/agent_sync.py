"""Use cases of agents: report their runs, get their orders, and deliver log lines."""

import asyncio
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from anyio import to_thread

from trainyard_protocol.errors import NotFound
from trainyard_protocol.fields import sized
from trainyard_protocol.job.cluster import PRIMARY, TrialOrder
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.lines.progress import MAX_NAME
from trainyard_protocol.states import FINAL_JOB_STATES, ReplicaState, RunState
from trainyard_protocol.wire.agents import CLUSTER
from trainyard_protocol.wire.logs import LogChunk, LogGap, LogReceipt
from trainyard_protocol.wire.peers import HOLD_S, SHORT_LEASE_S, Peers
from trainyard_protocol.wire.sync import (
    MAX_OTHERS,
    MAX_REPORTED,
    ReplicaOrder,
    RunOrder,
    RunReport,
    SpreadOrder,
    SyncRequest,
    SyncResponse,
    TrialMeasurement,
)
from trainyard_server.context import Backend
from trainyard_server.control.controller import Controller
from trainyard_server.control.snapshots import live_runs, peers_of, run_snapshot, spread_order, trial_order
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.run_tokens import RunTokens
from trainyard_server.domain.lifecycle import decisions, retries, stalls
from trainyard_server.domain.lifecycle.messages import of_part, waiting
from trainyard_server.domain.metrics.summary import CurveSummary
from trainyard_server.domain.reports import bounded_sync, checked_chunk, related
from trainyard_server.domain.snapshots import RunSnapshot
from trainyard_server.domain.tuning.measurements import merged
from trainyard_server.services.agents.agent_keys import check_key, run_with
from trainyard_server.services.agents.agents import unique_name
from trainyard_server.storage.db.base import revisions
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow, values_of
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import SERVICE_ACTOR, STALLED, Event, Writer
from trainyard_server.storage.db.tables import job_values, studies
from trainyard_server.storage.events.notifier import AGENTS_TOPIC, agent_topic, job_topic, log_topic
from trainyard_server.storage.failures import DatabaseError
from trainyard_server.storage.logs.store import LogMismatch, Stream
from trainyard_server.storage.membership import Offer

logger = logging.getLogger(__name__)

_ALIVE = (ReplicaState.STARTING, ReplicaState.RUNNING)
_COMPANY = 2
"""The number of live agents from which one more or less changes no lease."""


class AgentSync:
    def __init__(self, backend: Backend, controller: Controller, run_tokens: RunTokens, peer_key: str) -> None:
        """`peer_key` signs what agents say to each other."""
        self._backend = backend
        self._peer_key = peer_key
        self._run_tokens = run_tokens
        self._controller = controller
        self._newest: dict[str, object] = {}  # the latest sync of each agent

    async def sync(
        self,
        request: SyncRequest,
        key: AgentKey,
        still_connected: Callable[[], Awaitable[bool]] | None = None,
        name: str = "",
    ) -> SyncResponse:
        """Record the report, then answer with every run that the agent should have.

        While the agent has seen that answer, it is held for up to `wait_s`; a change or a newer sync of the same
        agent ends the wait. `still_connected` is whether the caller still waits. `name`: that of the agent's token, if
        it has one, in place of the agent's own. Raises PermissionDenied for the id of
        an agent with another key.
        """
        if name:
            agent = request.agent.model_copy(update={"name": name})
            request = request.model_copy(update={"agent": agent})
        received_at = self._backend.clock()
        request = bounded_sync(request, received_at)
        agent_id = request.agent.agent_id
        await to_thread.run_sync(self.record, request, key)
        me = self._newest[agent_id] = object()
        notifier = self._backend.notifier
        with notifier.subscribe(agent_topic(agent_id)) as events:
            notifier.publish(agent_topic(agent_id))
            reported = frozenset(report.run_id for report in request.runs)
            answer = await to_thread.run_sync(self.answer, agent_id, reported, request.reaches)
            deadline = asyncio.get_running_loop().time() + min(request.wait_s, self._longest_hold_s(agent_id, answer))
            while answer.version == request.seen and not notifier.closed:
                if self._newest.get(agent_id) is not me:
                    if still_connected is not None and await still_connected():
                        logger.warning(
                            "Two agents use the id %s (%s) at the same time: each needs a state directory of its own.",
                            agent_id,
                            request.agent.name,
                        )
                    break
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                if await events.wait(left):
                    answer = await to_thread.run_sync(self.answer, agent_id, reported, request.reaches)
            if self._newest.get(agent_id) is me:
                del self._newest[agent_id]
            await to_thread.run_sync(self._answered, agent_id, answer)
            times = {"received_at": received_at, "answered_at": self._backend.clock()}
            return answer.model_copy(update=times | {"stamp": self._backend.membership.stamp(agent_id)})

    def record(self, request: SyncRequest, key: AgentKey) -> None:
        """Store the agent's report of itself and its runs. An old report changes nothing. Raises PermissionDenied."""
        backend = self._backend
        now = backend.clock()
        touched, measured, partners = set[int](), set[int](), set[str]()
        with backend.store.write() as writer:
            agent_row = writer.agent(request.agent.agent_id)
            check_key(writer, agent_row, key)
            given_name, name = request.agent.name, unique_name(writer, agent_row, request.agent)
            request = request.model_copy(update={"agent": request.agent.model_copy(update={"name": name})})
            writer.act_as(_actor(name))
            was_restored = agent_row is not None and agent_row.restored
            has_last = backend.membership.called(
                request.agent.agent_id, request.agent.peer_address, request.echo, request.agent.group
            )
            mine = {run.run_id: (run, gang) for run, gang in live_runs(writer, request.agent.agent_id)}
            left = sorted({r.run_id for r in request.runs if any(s.state in _ALIVE for s in r.replicas)} - mine.keys())
            changed = (
                agent_row is None
                or not backend.agent_liveness.is_alive(agent_row)
                or agent_row.info != request.agent.model_dump(mode="json")
                or agent_row.orphaned_runs != left
            )
            stored = () if agent_row is None else agent_row.info.get("device_errors", ())
            errors = [error for error in request.agent.device_errors if error not in stored]
            heartbeat = writer.save_agent(request.agent, key.digest, left, now, given_name)
            if errors and (row := writer.agent(request.agent.agent_id)) is not None:
                writer.set_draining(row, True, f"its GPUs have errors: {'; '.join(errors)}")
            is_last = agent_row is not None and agent_row.sent_version == request.seen
            if agent_row is not None and is_last and (has_last or not agent_row.has_members):
                writer.confirm_lease(agent_row)
            if agent_row is not None and was_restored:
                reported = {report.run_id for report in request.runs}
                touched |= self._controller.restoration.called(writer, agent_row, reported, now)
            for report in request.runs:
                if report.run_id not in mine:
                    continue  # ended or unknown: the answer does not list it, so the agent drops it
                run, gang = mine[report.run_id]
                snapshot = run_snapshot(run, gang)
                of_run = report if run.agents == 1 else of_part(related(report, request.clock), request.agent.name)
                changes = decisions.observe(snapshot, of_run, now)
                if report.runtime is not None and run.runtime != report.runtime:
                    writer.record_runtime(run, report.runtime, report.runtime_reason, now)
                    touched.add(run.job_key)
                if report.resolved is not None and not run.has_resolved:
                    writer.record_resolved(run, report.resolved.bounded(), now)
                    touched.add(run.job_key)
                activity = report.activity or waiting(report.replicas)
                ready = run.ready or report.ready  # one that has started says no more that it is
                if run.agents > 1 and (changes or run.ready != ready):  # the other parts wait for that
                    partners |= {part.agent_id for part in writer.parts(run)}
                if not run.acknowledged or (run.activity, run.ready) != (activity, ready):
                    events = _preparation_events(run, report, activity, request.agent.name)
                    writer.record_activity(run, activity, ready, now, events)
                    touched.add(run.job_key)
                for change in changes:
                    writer.change_replica(run, change, now)
                    touched.add(run.job_key)
                if self._note_stalls(writer, run, snapshot, report, now):
                    touched.add(run.job_key)
                if report.measurements and _record_measurements(writer, run.job_key, report):
                    measured.add(run.job_key)
                if report.other_metrics and not report.measurements:
                    _record_others(writer, run.job_key, report.other_metrics)
            others = self._others_alive(writer, request.agent.agent_id, _COMPANY) if changed else ()
            moves = self._controller.move(writer, touched | measured, now, measured)
        backend.agent_liveness.silent_s(heartbeat)  # now, however late the next tick is
        if changed:
            # The lease of one that was alone changes.
            alone = others if len(others) < _COMPANY else ()
            backend.notifier.publish(AGENTS_TOPIC, *map(agent_topic, alone))
        backend.notifier.publish(*map(job_topic, touched | measured), *map(agent_topic, partners))
        self._controller.follow(moves)
        if moves.releases or moves.left or changed:
            self._controller.schedule()

    def answer(self, agent_id: str, reported: Collection[str] = (), reaches: Collection[str] = ()) -> SyncResponse:
        """All orders for the agent, which has reported these runs and reaches these agents. The agent of a machine gets
        a lease while another agent could run its jobs: the short one where it reaches a majority. That of an engine
        gets none: its runs outlive it, and never start elsewhere because it is silent.

        A run that ended without the agent, because it was silent for too long, is ordered to stop until its logs are
        here.
        """
        backend = self._backend
        with backend.store.read() as reader:
            me = reader.agent(agent_id)
            fronts_engine = me is not None and me.info.get("kind") == CLUSTER
            offer, lease_s = Offer({}, ()), None
            if me is not None and not fronts_engine and not backend.settings.long_leases:
                offer = backend.membership.offer(agent_id, reaches, me.sent_members)
            if offer.members:
                lease_s = SHORT_LEASE_S
            elif not fronts_engine and (
                self._others_alive(reader, agent_id, 1) or revisions.others_run(reader, agent_id)
            ):
                lease_s = backend.settings.lease_s
            addresses = offer.addresses or ({} if fronts_engine else backend.membership.neighbours(agent_id))
            peers = Peers(key=self._peer_key, addresses=addresses) if addresses else None
            # An engine's objects, which others may read, have no token of the run.
            orders = self._orders(reader, agent_id, None if fronts_engine else self._run_tokens, reported)
            further: dict[str, Any] = {}
            for capability in backend.capabilities if orders else ():
                if capability.agent_orders is not None:
                    further |= capability.agent_orders(reader, agent_id, backend.clock())
        answer = SyncResponse(version="", lease_s=lease_s, runs=orders, members=offer.members, peers=peers, **further)
        if me is not None:
            answer = answer.model_copy(update={"name": str(me.info["name"])})
        version = hashlib.sha256(answer.model_dump_json().encode()).hexdigest()[:16]
        return answer.model_copy(update={"version": version})

    def _longest_hold_s(self, agent_id: str, answer: SyncResponse) -> float:
        """Seconds for which the answer to the agent is held: few where it may get the short lease."""
        settings = self._backend.settings
        votes = answer.peers is not None and not settings.long_leases and self._backend.membership.may_vote(agent_id)
        return min(settings.longest_hold_s, HOLD_S) if votes else settings.longest_hold_s

    def _others_alive(self, reader: Reader, agent_id: str, enough: int) -> Sequence[str]:
        """Agents other than this one that are alive: `enough` or more of them, or all. Those that were heartbeat last
        mostly are enough, and no other row is read then."""
        liveness, alive = self._backend.agent_liveness, list[str]()
        for agents in (liveness.newest, None):
            rows = revisions.heartbeats(reader, agents)
            alive = [row.agent_id for row in rows if row.agent_id != agent_id and liveness.is_alive(row)]
            if len(alive) >= enough:
                break
        return alive

    def append_logs(self, run_id: str, task: str, chunk: LogChunk, key: AgentKey) -> LogReceipt:
        """Add the lines that continue the replica's log. Complete once its end is here and agrees with the lines that
        the server has, or once the job's log quota is used up.

        A log that can never be completed is closed as it is, with an event: no job waits for it. An agent that was lost
        and is back completes the logs of its ended runs, while their jobs go on. Raises NotFound for an unknown
        replica, or one whose job was deleted meanwhile, PermissionDenied for another agent's.
        """
        try:
            return self._append_logs(run_id, task, chunk, key)
        except (DatabaseError, FileNotFoundError):
            with self._backend.store.read() as reader:
                run_with(reader, run_id, key)  # which says so if it was deleted meanwhile
            raise

    def _append_logs(self, run_id: str, task: str, chunk: LogChunk, key: AgentKey) -> LogReceipt:
        backend = self._backend
        chunk = checked_chunk(chunk)
        with backend.store.read() as reader:
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
            actor = _actor(str(agent.info["name"])) if agent is not None else SERVICE_ACTOR
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
        with self._backend.store.read() as reader:
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
        with self._backend.store.read() as reader:
            return reader.digests([run_id]).get((run_id, task))

    @staticmethod
    def _note_stalls(writer: Writer, run: RunRow, snapshot: RunSnapshot, report: RunReport, now: datetime) -> bool:
        """Record the stalls of the report. Whether anything changed."""
        changes, after = decisions.stall_changes(snapshot, report)
        if changes and run.agents > 1:  # what the other parts do counts, too
            snapshot = run_snapshot(run, writer.gang(run))
            _, after = decisions.stall_changes(snapshot, report)
        for task, stall, stacks in changes:
            writer.record_stall(run, task, stall, stacks)
        before, now_stalled = stalls.diagnose(snapshot.members), stalls.diagnose(after.members)
        if now_stalled is not None and before is None:
            writer.add_event(run.job_key, Event(STALLED, now_stalled.message, run.number, now_stalled.task), now)
        if now_stalled is None and before is not None:
            message = f"{before.task} moves on." if len(snapshot.replicas) == 1 else "The replicas move on."
            writer.add_event(run.job_key, Event("moves-on", message, run.number, before.task), now)
        return bool(changes)

    def _answered(self, agent_id: str, answer: SyncResponse) -> None:
        """Record the lease of the answer.

        No lease holds at once. A lease holds when the agent has acknowledged it: the answer may be lost, and an agent
        without a lease stops nothing. Until then the longer of two leases holds.

        Nothing is written for the answer that the agent has: it is held for less than the time after which an agent
        counts as silent.
        """
        with self._backend.store.read() as reader:
            agent_row = reader.agent(agent_id)
            if agent_row is None or (
                (agent_row.sent_version, agent_row.sent_lease_s) == (answer.version, answer.lease_s)
                and agent_row.lease_s == _longer(agent_row.lease_s, answer.lease_s)
                and (not answer.members or list(answer.members) in agent_row.member_lists)
            ):
                return
        with self._backend.store.write() as writer:
            agent = writer.agent(agent_id)
            if agent is None:
                return
            lease_s = _longer(agent.lease_s, answer.lease_s)
            if bool(answer.members) != bool(agent.sent_members):
                by = f"by a majority of {len(answer.members)} and the server" if answer.members else "for itself"
                logger.info("Agent %s has its lease %s: %s s", agent.info["name"], by, answer.lease_s)
            writer.answer_agent(agent, answer.version, answer.lease_s, answer.members, self._backend.clock())
            writer.grant_lease(agent, lease_s)
        # Record the heartbeat now, however late the next tick is.
        self._backend.agent_liveness.silent_s(agent)

    def _orders(
        self, reader: Reader, agent_id: str, tokens: RunTokens | None, reported: Collection[str]
    ) -> tuple[RunOrder, ...]:
        orders = []
        live = live_runs(reader, agent_id)
        gangs = {run.job_key: run for run, _ in live if run.beside is None}
        ended = set(reported) - {run.run_id for run, _ in live}
        late = [(run, list(reader.replicas([run.run_id]))) for run in reader.late_runs(agent_id, ended)]
        mine = [*live, *late]
        jobs = reader.jobs_by_key(run.job_key for run, _ in mine)
        for run, gang in mine:
            job = jobs[run.job_key]
            try:
                training_input, _ = reader.job_input(job)
                trial = trial_order(reader, job)
            except Exception:  # the other runs of the agent go on
                logger.exception("Job %s of %s cannot be read", job.job_id, job.project)
            else:
                gang_run = gangs.get(run.job_key) if run.beside is not None else None
                peers = reader.gang(gang_run) if gang_run is not None else ()
                has_token = tokens is not None and run.state is not RunState.ENDED
                token = tokens.token(run.run_id) if tokens is not None and has_token else ""
                spread = spread_order(reader, run)
                retried = _retried_codes(reader, job, training_input)
                orders.append(self._order(run, gang, peers, job, training_input, trial, token, spread, retried))
        return tuple(orders)

    def _order(
        self,
        run: RunRow,
        gang: list[ReplicaRow],
        peers: Sequence[ReplicaRow],
        job: JobRow,
        training_input: TrainingInput,
        trial: TrialOrder | None,
        run_token: str,
        spread: SpreadOrder | None,
        retried_codes: tuple[int, ...],
    ) -> RunOrder:
        job_dir = self._backend.job_dir(job.project, job.owner, job.job_id, training_input.job_dir, job.created_at)
        if training_input.job_dir not in ("", job_dir):
            training_input = training_input.model_copy(update={"job_dir": job_dir})
        further: dict[str, Any] = {}
        for capability in self._backend.capabilities:
            if capability.order is not None:
                further |= capability.order(job, run_token)
        return RunOrder(
            run_id=run.run_id,
            number=run.number,
            target="stop" if run.state in (RunState.STOPPING, RunState.ENDED) else "run",
            project=job.project,
            job_id=job.job_id,
            training_input=training_input,
            replicas=tuple(
                ReplicaOrder(
                    **values_of(replica, ReplicaOrder),
                    pod=self._backend.catalog.pod_settings(replica.machine_type, replica.accelerator_type),
                )
                for replica in gang
            ),
            grace_s=self._backend.settings.grace_s,
            log_quota_bytes=self._backend.settings.log_quota,
            stall=stalls.policy_of(job.labels, self._backend.settings.stall_policy),
            job_dir="" if training_input.job_dir else job_dir,
            owner=job.owner,
            priority=job.priority,
            trial=trial,
            peers=peers_of(gang, peers),
            run_token=run_token,
            spread=spread,
            wants_resolved=not run.has_resolved,
            retried_codes=retried_codes,
            **further,
        )


def _retried_codes(reader: Reader, job: JobRow, training_input: TrainingInput) -> tuple[int, ...]:
    """The exit codes with which no replica is kept, which only a job with keepOnFailure has."""
    scheduling = training_input.scheduling
    if scheduling is None or scheduling.keep_on_failure is None:
        return ()
    return retries.retried_codes(training_input, reader.rules_used(job.key))


def _longer(held_s: float | None, sent_s: float | None) -> float | None:
    """The lease that holds until the agent has acknowledged an answer; None: no limit."""
    return None if held_s is None or sent_s is None else max(held_s, sent_s)


def _record_measurements(writer: Writer, job_key: int, report: RunReport) -> bool:
    """Store the measurements of a trial. Whether any is new."""
    trial_and_stored = studies.stored_reports(writer, job_key)
    last = report.measurements[-MAX_REPORTED:]
    reported = [(point.step, point.value) for point in last if math.isfinite(point.value)]
    if trial_and_stored is None or not reported:
        return False
    trial, stored = trial_and_stored
    values, newest = merged(stored, reported), merged((), reported)[-1]
    if trial.from_file and (trial.step, trial.value) == newest and values == stored:
        return False
    if studies.metric_of(writer, trial.study_key):
        return False  # the study took another metric before this was reported
    studies.record_measurements(writer, trial, values, newest)
    return True


def _record_others(writer: Writer, job_key: int, metrics: Mapping[str, TrialMeasurement]) -> None:
    """Store the metrics in the file of a trial that has none of the study's name."""
    trial_and_stored = studies.stored_reports(writer, job_key)
    values = {
        name: (measurement.step, measurement.value)
        for name, measurement in list(metrics.items())[:MAX_OTHERS]
        if 0 < len(name) <= MAX_NAME and name.isprintable() and math.isfinite(measurement.value)
    }
    if trial_and_stored is not None and values:
        studies.record_others(writer, trial_and_stored[0], CurveSummary(further=values).json())


def _actor(agent: str) -> str:
    """The actor of what an agent reports. No person's name has a space."""
    return f"agent {agent}"


def _preparation_events(run: RunRow, report: RunReport, activity: str, agent: str) -> list[Event]:
    """Events of the preparation of a run. What it waits for in its engine is one as it begins: it changes often."""
    events = []
    if not run.acknowledged and run.part_of is None:
        events.append(Event("acknowledged", "Waiting for training program to start.", run.number))
    if activity and activity != run.activity and (report.activity or not run.activity):
        on = f" (agent {agent})" if run.agents > 1 else ""
        events.append(Event("preparing", f"{activity[0].upper()}{activity[1:]}{on}.", run.number))
    return events


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
