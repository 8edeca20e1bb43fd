"""Runs of this machine: what the runtime has of them, and the actions on them."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainyard_agent.agent_parts import AgentParts
from trainyard_agent.control.launch import launches
from trainyard_agent.control.log_shipper import LogShipper
from trainyard_agent.control.reconcile import (
    Action,
    AskParts,
    GiveUp,
    LocalRun,
    PlacePart,
    Prepare,
    Remove,
    Start,
    Stop,
    reconcile,
)
from trainyard_agent.control.start_deadline import StartDeadline
from trainyard_agent.monitoring.disk_watch import ExitNotes
from trainyard_agent.monitoring.metric_files import MetricFiles
from trainyard_agent.monitoring.stall_monitor import StallMonitor
from trainyard_agent.peers.parts import Parts
from trainyard_agent.runtimes.base import STOPPED, EngineUnavailable, Handle, Mount, StartFailed
from trainyard_agent.runtimes.exits import blamed_on_disk, never_ran, tells_of_disk
from trainyard_agent.runtimes.masking import Mask
from trainyard_agent.staging.base import Staging
from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.observations import ResolvedRun
from trainyard_protocol.wire.sync import ReplicaReport, RunOrder, RunReport

_NOTHING_STAGED = Staging("stale")

_log = logging.getLogger(__name__)

Observed = dict[str, tuple[ReplicaReport, ...]]


class LocalRuns:
    """Runs that were ordered, those that the runtime has, and those that were given up. `handles`: of launched ones, by
    their ids; `lost`: those given up that were launched."""

    def __init__(self, parts: AgentParts, stall_monitor: StallMonitor, shipper: LogShipper) -> None:
        self._agent = parts
        self._runtime, self._stager, self._disks = parts.runtime, parts.stager, parts.disks
        self._stall_monitor, self._shipper = stall_monitor, shipper
        self._parts = Parts(parts.runtime, parts.meet, parts.members.unreached.record_apart)
        self._metric_files = MetricFiles(parts.runtime, parts.clock)
        self._exit_notes = ExitNotes(parts.disks)
        self._start_deadline = StartDeadline(parts.start_deadline_s)
        self.is_recovered = False
        self.handles: dict[str, Handle] = {}
        self.orders: dict[str, RunOrder] = {}
        self.given_up: Observed = {}
        self.lost: set[str] = set()
        self.observed: Observed = {}
        self._unobservable: set[str] = set()
        self._stopped: set[str] = set()

    async def recover(self) -> None:
        """Find the runs of the agent before."""
        if self.is_recovered:
            return
        handles = await asyncio.to_thread(self._runtime.recover)
        self.handles = {handle.run_id: handle for handle in handles}
        self.is_recovered = True
        if handles:
            _log.info("recovered %d run(s)", len(handles))

    def is_quiet(self) -> bool:
        """Whether nothing is to be expected but what the runtime tells."""
        return (
            self._runtime.traits.tells_changes
            and not self._stopped & self.handles.keys()
            and self.orders.keys() <= self.observed.keys() | self.given_up.keys()
            and all(
                replica.state in (ReplicaState.RUNNING, ReplicaState.EXITED)
                for replicas in self.observed.values()
                for replica in replicas
            )
        )

    async def reports(self) -> tuple[RunReport, ...]:
        """A report for every run that the runtime holds or the server ordered."""
        observed = await self.observe()
        await self._note_disks(observed)
        measured = await asyncio.to_thread(self._metric_files.with_measurements, dict(self.handles), observed)
        staging = self._stager.status()
        reports = [
            RunReport(
                run_id=run_id,
                replicas=self._stall_monitor.annotate(
                    run_id, self._exit_notes.annotate(run_id, self._start_deadline.annotate(run_id, run.replicas))
                ),
                runtime=self.handles[run_id].runtime,
                runtime_reason=staging[run_id].runtime_reason if run_id in staging else "",
                measurements=run.measurements,
                other_metrics=dict(run.others),
                resolved=self._resolved(run_id, staging),
            )
            for run_id, run in measured.items()
            if run_id in self.handles
        ]
        for run_id, order in self.orders.items():
            if run_id in observed or run_id in self.given_up:
                continue
            if placed := self._parts.report(order):
                reports.append(placed)
                continue
            pending = tuple(ReplicaReport(task=replica.task, state=ReplicaState.PENDING) for replica in order.replicas)
            prepared = staging.get(run_id, _NOTHING_STAGED)
            reports.append(
                RunReport(
                    run_id=run_id,
                    replicas=pending,
                    activity=prepared.activity,
                    runtime=prepared.runtime,
                    runtime_reason=prepared.runtime_reason,
                    resolved=self._resolved(run_id, staging),
                )
            )
        reports += [RunReport(run_id=run_id, replicas=exits) for run_id, exits in self.given_up.items()]
        return tuple(sorted(reports, key=lambda report: report.run_id))

    def _resolved(self, run_id: str, staging: Mapping[str, Staging]) -> ResolvedRun | None:
        """The versions that a run has, if the server wants them."""
        order = self.orders.get(run_id)
        is_wanted = order is not None and order.wants_resolved and run_id in staging
        return staging[run_id].resolved if is_wanted else None

    async def _note_disks(self, observed: Observed) -> None:
        """Look at the disks when a replica has failed, once: a full one may be why."""
        failed = [run for run in observed.items() if self._exit_notes.are_missing(*run)]
        if failed:
            problem = await asyncio.to_thread(self._disks.look)
            for run_id, replicas in failed:
                self._exit_notes.note(run_id, replicas, problem)

    async def observe(self) -> Observed:
        def observe(run_ids: list[str]) -> Observed:
            return {run_id: self._observe_run(run_id) for run_id in run_ids}

        observed = await asyncio.to_thread(observe, list(self.handles))
        self.observed = {run_id: replicas for run_id, replicas in observed.items() if replicas}
        return self.observed

    def _observe_run(self, run_id: str) -> tuple[ReplicaReport, ...]:
        """The run's reports; the last ones if it cannot be observed now, so that other runs are still reported."""
        try:
            reports = self._runtime.observe(run_id)
        except Exception as error:
            if run_id not in self.observed:
                raise
            if run_id not in self._unobservable:
                log_failure(f"run {run_id} cannot be observed", error)
            self._unobservable.add(run_id)
            return self.observed[run_id]
        self._unobservable.discard(run_id)
        return reports

    async def follow(self, orders: Sequence[RunOrder]) -> Mapping[str, LocalRun]:
        """Take these for all orders. Returns what there is of their runs, for `reconcile`."""
        self.orders = {order.run_id: order for order in orders}
        observed = await self.observe()
        for run_id in self.handles.keys() - observed.keys():
            await self._give_up_lost(run_id)
        return {
            run_id: LocalRun(any(r.exit is None for r in replicas), self.handles[run_id].grace_s)
            for run_id, replicas in observed.items()
        }

    def actions(self, local: Mapping[str, LocalRun]) -> list[Action]:
        """The actions that follow from the orders, given what there is of their runs."""
        info = self._agent.info()
        return reconcile(
            tuple(self.orders.values()),
            local,
            self._stager.status(),
            self.given_up.keys(),
            self._parts.states(),
            no_images="" if info.runs_images else info.engine_problem or "this agent starts no containers",
        )

    async def execute(self, action: Action) -> None:
        match action:
            case Prepare(order):
                self._stager.begin(order)
            case PlacePart(order):
                staging = self._stager.status().get(order.run_id, _NOTHING_STAGED)
                await self._parts.place(order, staging.job_dir)
            case AskParts(order):
                self._parts.ask(order)
            case Start(order, staging):
                await self._start(order, staging)
            case GiveUp(order, reason, message):
                await self._parts.drop(order.run_id)
                await self._stager.discard(order.run_id)
                await self._give_up(order, {replica.task: (reason, message) for replica in order.replicas})
            case Stop(run_id, grace_s):
                await self._stop(run_id, grace_s)
            case Remove(run_id):
                await self._parts.drop(run_id)
                await asyncio.to_thread(self._runtime.remove, run_id)
                await self._stager.discard(run_id)
                self.handles.pop(run_id, None)
                self.given_up.pop(run_id, None)
                self.lost.discard(run_id)
                self._stopped.discard(run_id)
                self._exit_notes.forget(run_id)
                _log.info("removed run %s", run_id)

    async def _start(self, order: RunOrder, staging: Staging) -> None:
        """Raises TrainyardError while the server does not give the run's secrets."""
        secrets: dict[str, str] = {}
        if order.training_input.secrets:
            try:
                secrets = (await self._agent.control_plane.secrets(order.run_id)).values
            except FailedPrecondition as error:
                await self._parts.drop(order.run_id)
                await self._stager.discard(order.run_id)
                end = (Reason.SECRETS_FAILED, error.message)
                await self._give_up(order, {replica.task: end for replica in order.replicas})
                return

        await self._parts.close(order.run_id)

        def place_and_start() -> Handle:
            try:
                placed = self._runtime.place(order)
                mounts = self._mounts_of(order, staging.job_dir_target)
                environment = self._agent.info().environment_in(placed.runtime)
                gang = launches(
                    order,
                    placed.addresses,
                    staging,
                    environment,
                    secrets,
                    placed.interface,
                    mounts,
                    self._agent.tracking.uri_in(placed.runtime),
                    self._agent.tracking.ca_file,
                )
                return self._runtime.start(order.run_id, gang)
            except StartFailed:
                raise
            except EngineUnavailable as error:
                raise StartFailed(order.replicas[0].task, str(error), Reason.GIVEN_BACK) from error
            except Exception as error:
                # A bug of ours, which a retry would hit again: the job fails with it.
                _log.exception("run %s cannot be started", order.run_id)
                self._runtime.remove(order.run_id)
                message = f"The agent failed with {type(error).__name__}: {error}."
                raise StartFailed(order.replicas[0].task, message) from error

        try:
            self.handles[order.run_id] = await asyncio.to_thread(place_and_start)
        except StartFailed as failure:
            others = "It was not started, because another replica of its run could not be."
            ends = {replica.task: (Reason.STOPPED, others) for replica in order.replicas}
            ends[failure.task] = (failure.reason, Mask(secrets.values()).text(failure.message))
            await self._stager.discard(order.run_id)
            await self._give_up(order, ends)
        else:
            self._shipper.begin(order.run_id, self.handles[order.run_id].addresses)
            _log.info("started run %d of job %s (%s)", order.number, order.job_id, order.run_id)

    def _mounts_of(self, order: RunOrder, job_dir: str) -> tuple[Mount, ...]:
        """The mounts of a placed run. Raises StartFailed, after the run was removed."""
        try:
            return self._agent.mounts.of(order, job_dir)
        except StartFailed:
            self._runtime.remove(order.run_id)
            raise

    async def _stop(self, run_id: str, grace_s: float, reason: Reason = STOPPED) -> None:
        self._stopped.add(run_id)
        await asyncio.to_thread(self._runtime.stop, run_id, grace_s, reason)

    async def _give_up_lost(self, run_id: str) -> None:
        """End a launched run that the runtime no longer has, and report that: its files were removed, by hand or by its
        own program."""
        del self.handles[run_id]
        self.lost.add(run_id)
        try:
            await asyncio.to_thread(self._runtime.remove, run_id)
        except Exception as error:  # noqa: BLE001 - one run must not block the others
            log_failure(f"what is left of run {run_id} cannot be ended", error)
        order = self.orders.get(run_id)
        if order is not None:
            end = (Reason.VANISHED, "Its directory on the machine is gone.")
            await self._give_up(order, {replica.task: end for replica in order.replicas})

    async def _give_up(self, order: RunOrder, ends: dict[str, tuple[Reason, str]]) -> None:
        """Report the run as ended. A full disk is the machine's fault; the next report has it, so nothing else starts
        there."""
        is_disks = any(tells_of_disk(message) for _, message in ends.values())
        suspect = Path(order.directory) if is_disks and order.directory.startswith("/") else None
        now, no_room = self._agent.clock.now(), await asyncio.to_thread(self._disks.look, suspect)
        ends = {task: blamed_on_disk(*end, no_room) for task, end in ends.items()}
        self.given_up[order.run_id] = tuple(
            ReplicaReport(
                task=task,
                state=ReplicaState.EXITED,
                exit=never_ran(reason, message, now, after_stop=reason is Reason.STOPPED),
            )
            for task, (reason, message) in ends.items()
        )
        for task, (reason, message) in ends.items():
            _log.info("run %s: %s %s (%s)", order.run_id, task, message, reason)

    async def enforce_lease(self) -> None:
        """Stop the runs whose lease expires, each despite failures of others: the server may start them elsewhere."""
        expiring = [handle for handle in self.handles.values() if self._agent.lease.must_stop(handle.grace_s)]
        left = self._agent.lease.grace_left
        stops = [self._stop(handle.run_id, left(handle.grace_s), Reason.HOST_LOST) for handle in expiring]
        for outcome in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def enforce_start_deadline(self) -> None:
        """Stop the runs whose engine does not start them: each waits for a new run in the server's queue."""
        for run_id, message in self._start_deadline.overdue(self.observed, self._agent.clock.monotonic()).items():
            if run_id in self.handles:
                grace_s = self.handles[run_id].grace_s
                await self._stop(run_id, grace_s, Reason.GIVEN_BACK)
                self._start_deadline.give_back(run_id, message)
                _log.warning("run %s is given back: %s", run_id, message)


def log_failure(what: str, error: Exception) -> None:
    """An engine that is away is one line; all else is a bug of ours."""
    if isinstance(error, EngineUnavailable):
        _log.warning("%s; trying again: %s", what, error)
    else:
        _log.error("%s; trying again", what, exc_info=error)
