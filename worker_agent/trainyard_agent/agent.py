"""The agent's loops, which make the local runs match the server's orders.

    sync      reports all local runs and receives the orders: a long poll, ended early by a local change
    watch     detects local changes, enforces the lease
    ship      sends the replicas' logs
    stalls    checks whether the replicas make progress
    usage     reports what the replicas use

The agent decides nothing about a job: it reports what it observes and executes what `reconcile` returns.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from trainyard_agent.attachments.attachments import ReplicaAttachments
from trainyard_agent.control.launch import TrackingAddresses, launches
from trainyard_agent.control.log_shipper import SILENT_EVERY, LogShipper
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
from trainyard_agent.control.server_clock import ServerClock
from trainyard_agent.control.start_deadline import START_DEADLINE_S, StartDeadline
from trainyard_agent.host.clock import Clock
from trainyard_agent.lease.lease import Lease
from trainyard_agent.lease.majority import Majority
from trainyard_agent.monitoring.disk_watch import DiskWatch, ExitNotes
from trainyard_agent.monitoring.metric_files import MetricFiles
from trainyard_agent.monitoring.nvidia_smi import NvidiaSmi
from trainyard_agent.monitoring.stack_dump import StackDumper
from trainyard_agent.monitoring.stall_monitor import POLL_S, StallMonitor
from trainyard_agent.monitoring.usage_reporter import USAGE_S, UsageReporter
from trainyard_agent.peers.meeting import Meeting
from trainyard_agent.peers.members import PeerMembers
from trainyard_agent.peers.parts import Parts
from trainyard_agent.peers.reach import Reach
from trainyard_agent.runtimes.base import STOPPED, EngineUnavailable, Handle, Mount, Runtime, StartFailed
from trainyard_agent.runtimes.exits import blamed_on_disk, never_ran, tells_of_disk
from trainyard_agent.runtimes.masking import Mask
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.base import Stager, Staging
from trainyard_agent.staging.mounts import AgentMounts
from trainyard_protocol.errors import FailedPrecondition, PermissionDenied, TrainyardError, Unauthenticated
from trainyard_protocol.job.mounts import SiteMounts
from trainyard_protocol.job.resources import is_tpu
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.views.agents import ANSWERED, REFUSED
from trainyard_protocol.wire.agents import AgentInfo
from trainyard_protocol.wire.sync import ReplicaReport, ResolvedRun, RunOrder, RunReport, SyncRequest, SyncResponse

HOLD_S = 20.0
"""How long the server may hold an answer."""

WATCH_S = 0.1
"""Between two observations of the replicas, where something is about to change that is not told."""

QUIET_WATCH_S = 1.0
"""Between two observations of replicas that do nothing but run, and whose ends are told."""

SHIP_S = 0.1
"""Between two reads of their logs: lines written in between are sent together."""

_SOON_S = 0.2  # so long may a preparation take whose run starts with the answer that ordered it
_SAME_MOMENT_S = 0.03  # so long after a wake-up, peers that end together are reported together
_FIRST_BACKOFF_S = 0.2
_MAX_BACKOFF_S = 3.0
_MIN_SYNC_PAUSE_S = 0.01  # between two syncs, in case the server never holds an answer

_NOTHING_STAGED = Staging("stale")

_log = logging.getLogger(__name__)
_jitter = random.SystemRandom()

_Observed = dict[str, tuple[ReplicaReport, ...]]


@dataclass(frozen=True, slots=True)
class _Retry:
    """A failed action: its failures in a row, and the (monotonic) time of the next attempt."""

    failures: int
    at: float


class _Time(NamedTuple):
    """A moment, by the two clocks of the machine."""

    monotonic: float
    of_day: datetime


class Agent:
    def __init__(
        self,
        runtime: Runtime,
        control_plane: ServerClient,
        stager: Stager,
        clock: Clock,
        info: Callable[[], AgentInfo],
        lease: Lease | None = None,
        usage_s: float = USAGE_S,
        start_deadline_s: float = START_DEADLINE_S,
        disks: DiskWatch | None = None,
        meet: Callable[[str], Meeting] = Meeting,
        members: PeerMembers | None = None,
        mounts: AgentMounts | None = None,
        tracking: TrackingAddresses | None = None,
    ) -> None:
        """`info`: what the agent offers now, which may change. `disks`: those that it and its runs write to. `usage_s`:
        seconds between two usage measurements; 0: none. `start_deadline_s`: how long an engine may give the same
        reasons for not starting a run. `meet` makes the listeners of a part of a gang over several agents, before its
        start. `members`: the other agents of its server, by which it keeps `lease`. `mounts`: the
        directories that jobs may name. `tracking`: where replicas reach the server."""
        self._runtime = runtime
        self._control_plane = control_plane
        self._stager = stager
        self._mounts = mounts or AgentMounts(SiteMounts())
        self._tracking = tracking or TrackingAddresses()
        self._attachments = ReplicaAttachments(runtime, control_plane)
        self._server_clock = ServerClock()
        self._clock = clock
        self._info = info
        self._lease = lease or Lease(clock)
        self._members = members or PeerMembers(Majority(info().agent_id, self._lease, clock), Reach())
        self._parts = Parts(runtime, meet, self._members.unreached.record_apart)
        self._echo = ""
        self._name = info().name
        self._stall_monitor = StallMonitor(runtime, clock, StackDumper(runtime))
        driver = NvidiaSmi() if any(not is_tpu(gpu.type) for gpu in info().capacity.gpus) else None
        self._usage_reporter = UsageReporter(runtime, control_plane, clock, driver)
        self._usage_s = usage_s
        self._metric_files = MetricFiles(runtime, clock)
        self._disks = disks or DiskWatch()
        self._exit_notes = ExitNotes(self._disks)
        self._shipper = LogShipper(control_plane, runtime, watch=self._stall_monitor.ingest)
        self._recovered = False
        self._handles: dict[str, Handle] = {}
        self._orders: dict[str, RunOrder] = {}
        self._given_up: dict[str, tuple[ReplicaReport, ...]] = {}
        self._lost: set[str] = set()
        """Those of the runs given up that were launched."""
        self._observed: _Observed = {}
        self._unobservable: set[str] = set()
        self._stopped: set[str] = set()
        self._start_deadline = StartDeadline(start_deadline_s)
        self._retries: dict[tuple[str, type[Action]], _Retry] = {}
        self._version = ""
        self._reported: SyncRequest | None = None
        """The last report that the server has answered."""
        self._sent: SyncRequest | None = None
        """The last report, unless it has failed."""
        self._changed = asyncio.Event()
        self._woken, self._ship_woken = asyncio.Event(), asyncio.Event()
        """Set by the runtime, where it `tells_changes`."""
        self._hold_s = 0.0
        self._last_error = ""

    async def run(self) -> None:
        """Run until cancelled. Replicas keep running; staging in progress is cancelled."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            """From another thread, which may be later than the loop."""
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._woken.set)
                loop.call_soon_threadsafe(self._ship_woken.set)  # the last lines of a replica that has ended

        unsubscribe = self._runtime.subscribe(wake)
        try:
            await self._recover_when_possible()
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._repeat(self._sync_round, _MIN_SYNC_PAUSE_S))
                loops.create_task(self._repeat(self._watch_round, WATCH_S, self._woken))
                loops.create_task(self._repeat(self._ship, SHIP_S, self._ship_woken))
                loops.create_task(self._repeat(self._check_stalls, POLL_S))
                loops.create_task(self._repeat(self._members.round, WATCH_S))
                if self._usage_s:
                    loops.create_task(self._repeat(self._report_usage, self._usage_s))
        finally:
            unsubscribe()
            self._attachments.close()
            await self._stager.close()

    async def step(self, wait_s: float = 0.0) -> bool:
        """Run each loop once, in turn: sync, act on the answer, send logs. False if the server did not answer.

        For tests; `run` does the same concurrently.
        """
        await self._recover()
        answered = True
        try:
            await self._sync(await self._request(wait_s))
        except TrainyardError:
            answered = False
        await self._members.round()
        await self._enforce_lease()
        with contextlib.suppress(TrainyardError):  # the same error as above
            await self._ship()
        await self._enforce_start_deadline()
        await self._check_stalls()
        if self._usage_s:
            await self._report_usage()
        return answered

    async def _recover(self) -> None:
        if self._recovered:
            return
        handles = await asyncio.to_thread(self._runtime.recover)
        self._handles = {handle.run_id: handle for handle in handles}
        self._recovered = True
        if handles:
            _log.info("recovered %d run(s)", len(handles))

    async def _recover_when_possible(self) -> None:
        """Recover once the engine answers."""
        failures = 0
        while not self._recovered:
            try:
                await self._recover()
            except EngineUnavailable as error:
                failures += 1
                _log_failure("the runs of the agent before cannot be recovered", error)
                await self._clock.sleep(_backoff(failures))

    # The loops.

    async def _repeat(
        self, work: Callable[[], Awaitable[float | None]], pause_s: float, wake: asyncio.Event | None = None
    ) -> None:
        """Repeat for ever, with a pause in between, or with that which a round returns: longer after a failure, none at
        a `wake`. No error of a round ends the agent, which would leave its replicas alone."""
        failures, own_pause_s = 0, None
        while True:
            try:
                own_pause_s = await work()
                failures = 0
            except TrainyardError:
                failures += 1  # logged by `_handle_answer`, once
            except Exception as error:  # noqa: BLE001 - see the docstring
                failures += 1
                _log_failure("a round failed", error)
            pause = _backoff(failures) if failures else pause_s if own_pause_s is None else own_pause_s
            if wake is None or failures:
                await self._clock.sleep(pause)
            else:
                await self._clock.wait(wake, pause)
                await self._clock.sleep(_SAME_MOMENT_S if wake.is_set() else 0.0)

    async def _sync_round(self) -> None:
        """One sync. The server holds its answer, unless something has changed here or the last sync failed."""
        hold_s, self._hold_s = self._hold_s, 0.0
        self._changed.clear()
        self._sent = request = await self._request(hold_s)
        answered = self._reported.runs if self._reported is not None else ()
        if hold_s and any(run not in answered for run in request.runs):
            hold_s = 0.0  # the answer is acted on: what has ended is removed
            self._sent = request = request.model_copy(update={"wait_s": hold_s})
        if hold_s:
            await self._sync_unless_changed(request)
        else:
            await self._sync(request)
        self._hold_s = 0.0 if self._changed.is_set() else HOLD_S

    async def _watch_round(self) -> float:
        """One look. Returns how long to pause: less than to the end of the lease."""
        await self._enforce_lease()
        self._woken.clear()
        await self._enforce_start_deadline()
        sent = self._sent
        if any(retry.at <= self._clock.monotonic() for retry in self._retries.values()) or (
            sent is not None and (self._info().reported() != sent.agent or await self._reports() != sent.runs)
        ):
            self._changed.set()
        if not self._is_quiet():
            return WATCH_S
        stop_in = min((self._lease.stop_in(handle.grace_s) for handle in self._handles.values()), default=QUIET_WATCH_S)
        return max(WATCH_S, min(QUIET_WATCH_S, stop_in - WATCH_S))

    def _is_quiet(self) -> bool:
        """Whether nothing is to be expected but what the runtime tells."""
        return (
            self._runtime.traits.tells_changes
            and not self._retries
            and not self._stopped & self._handles.keys()
            and self._orders.keys() <= self._observed.keys() | self._given_up.keys()
            and all(
                replica.state in (ReplicaState.RUNNING, ReplicaState.EXITED)
                for replicas in self._observed.values()
                for replica in replicas
            )
        )

    # Sync.

    async def _sync_unless_changed(self, request: SyncRequest) -> None:
        """A long poll, cancelled when something changes here."""
        sync = asyncio.create_task(self._control_plane.sync(request))
        change = asyncio.create_task(self._changed.wait())
        sent = self._now()
        try:
            await asyncio.wait({sync, change}, return_when=asyncio.FIRST_COMPLETED)
            if sync.done():
                await self._handle_answer(request, sync, sent)
        finally:
            for task in (sync, change):
                task.cancel()
            await asyncio.gather(sync, change, return_exceptions=True)

    async def _sync(self, request: SyncRequest) -> None:
        await self._handle_answer(request, self._control_plane.sync(request), self._now())

    def _now(self) -> "_Time":
        return _Time(self._clock.monotonic(), self._clock.now())

    async def _handle_answer(self, request: SyncRequest, answer: Awaitable[SyncResponse], sent: "_Time") -> None:
        """Act on the answer to a request that was sent at `sent`. Logs repeated errors once, and raises them."""
        try:
            response = await answer
        except TrainyardError as error:
            self._reported = self._sent = None
            if error.message != self._last_error:
                is_refusal = isinstance(error, PermissionDenied | Unauthenticated)
                what = f"{REFUSED} {error.message}" if is_refusal else error.message
                _log.warning("%s Replicas keep running; trying again.", what)
            self._last_error = error.message
            raise
        if self._last_error:
            _log.info(ANSWERED)
        self._last_error = ""
        self._note_name(response.name)
        self._members.majority.answered(sent.monotonic, response)
        self._echo = response.stamp
        try:
            self._lease.renew(sent.monotonic, response.lease_s)
        except OSError as error:  # renewed in memory: the watchdog acts earlier
            _log.warning("the lease is not saved or has no watchdog: %s", error)
        self._reported = request
        if response.received_at is not None and response.answered_at is not None:
            self._server_clock.add(sent.of_day, response.received_at, response.answered_at, self._clock.now())
        await self._act(response)

    def _note_name(self, name: str) -> None:
        """Log another name than its own, or than before, by which the server lists this agent."""
        if name not in ("", self._name):
            _log.info("the server lists this agent as %s", name)
            self._name = name

    async def _request(self, wait_s: float) -> SyncRequest:
        return SyncRequest(
            agent=self._info().reported(),
            runs=await self._reports(),
            wait_s=wait_s,
            seen=self._version,
            clock=self._server_clock.offset(self._clock.now()),
            echo=self._echo,
            reaches=self._members.majority.reached,
        )

    async def _ship(self) -> float:
        """Send what is new. Returns how long to pause: not at all if more can be sent at once."""
        woken = self._ship_woken.is_set()
        self._ship_woken.clear()
        logs = [(handle.run_id, task) for handle in self._handles.values() for task in handle.addresses]
        # That they are empty is said only once the server knows their end: an agent that follows may start the run.
        reported = self._reported.runs if self._reported is not None and self._given_up else ()
        given_up = [
            (run.run_id, report.task)
            for run in reported
            if run.replicas == self._given_up.get(run.run_id)
            for report in run.replicas
        ]
        unstarted = [key for key in given_up if key[0] not in self._lost]
        logs += [(run_id, report.task) for run_id in self._lost for report in self._given_up.get(run_id, ())]
        if await self._shipper.ship(logs, woken, unstarted):
            return 0.0
        return SHIP_S * SILENT_EVERY if self._shipper.is_silent and self._runtime.traits.tells_changes else SHIP_S

    async def _check_stalls(self) -> None:
        await self._stall_monitor.poll(list(self._orders.values()), self._observed)

    async def _report_usage(self) -> None:
        await self._usage_reporter.report(list(self._orders.values()), self._observed)

    # Observation.

    async def _reports(self) -> tuple[RunReport, ...]:
        """A report for every run that the runtime holds or the server ordered."""
        observed = await self._observe()
        await self._note_disks(observed)
        measured = await asyncio.to_thread(self._metric_files.with_measurements, dict(self._handles), observed)
        staging = self._stager.status()
        reports = [
            RunReport(
                run_id=run_id,
                replicas=self._stall_monitor.annotate(
                    run_id, self._exit_notes.annotate(run_id, self._start_deadline.annotate(run_id, run.replicas))
                ),
                runtime=self._handles[run_id].runtime,
                runtime_reason=staging[run_id].runtime_reason if run_id in staging else "",
                measurements=run.measurements,
                other_metrics=dict(run.others),
                resolved=self._resolved(run_id, staging),
            )
            for run_id, run in measured.items()
            if run_id in self._handles
        ]
        for run_id, order in self._orders.items():
            if run_id in observed or run_id in self._given_up:
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
        reports += [RunReport(run_id=run_id, replicas=exits) for run_id, exits in self._given_up.items()]
        return tuple(sorted(reports, key=lambda report: report.run_id))

    def _resolved(self, run_id: str, staging: Mapping[str, Staging]) -> ResolvedRun | None:
        """The versions that a run has, if the server wants them."""
        order = self._orders.get(run_id)
        is_wanted = order is not None and order.wants_resolved and run_id in staging
        return staging[run_id].resolved if is_wanted else None

    async def _note_disks(self, observed: _Observed) -> None:
        """Look at the disks when a replica has failed, once: a full one may be why."""
        failed = [run for run in observed.items() if self._exit_notes.are_missing(*run)]
        if failed:
            problem = await asyncio.to_thread(self._disks.look)
            for run_id, replicas in failed:
                self._exit_notes.note(run_id, replicas, problem)

    async def _observe(self) -> _Observed:
        def observe(run_ids: list[str]) -> _Observed:
            return {run_id: self._observe_run(run_id) for run_id in run_ids}

        observed = await asyncio.to_thread(observe, list(self._handles))
        self._observed = {run_id: replicas for run_id, replicas in observed.items() if replicas}
        return self._observed

    def _observe_run(self, run_id: str) -> tuple[ReplicaReport, ...]:
        """The run's reports; the last ones if it cannot be observed now, so that other runs are still reported."""
        try:
            reports = self._runtime.observe(run_id)
        except Exception as error:
            if run_id not in self._observed:
                raise
            if run_id not in self._unobservable:
                _log_failure(f"run {run_id} cannot be observed", error)
            self._unobservable.add(run_id)
            return self._observed[run_id]
        self._unobservable.discard(run_id)
        return reports

    # Actions.

    async def _act(self, response: SyncResponse) -> None:
        self._orders = {order.run_id: order for order in response.runs}
        observed = await self._observe()
        for run_id in self._handles.keys() - observed.keys():
            await self._give_up_lost(run_id)
        local = {
            run_id: LocalRun(any(r.exit is None for r in replicas), self._handles[run_id].grace_s)
            for run_id, replicas in observed.items()
        }
        retries, self._retries = self._retries, {}
        actions = self._actions(response, local)
        await self._try_all(actions, retries)
        begun = {action.order.run_id for action in actions if isinstance(action, Prepare)}
        if begun:  # what is prepared soon starts without another sync
            await self._stager.settle(begun, _SOON_S)
            prepared = [step for step in self._actions(response, local) if isinstance(step, Start | PlacePart | GiveUp)]
            await self._try_all([step for step in prepared if step.order.run_id in begun], retries)
        self._attachments.follow(response.attachments)
        self._version = response.version
        self._woken.set()

    def _actions(self, response: SyncResponse, local: Mapping[str, LocalRun]) -> list[Action]:
        info = self._info()
        return reconcile(
            response.runs,
            local,
            self._stager.status(),
            self._given_up.keys(),
            self._parts.states(),
            no_images="" if info.runs_images else info.engine_problem or "this agent starts no containers",
        )

    async def _try_all(self, actions: Sequence[Action], retries: Mapping[tuple[str, type[Action]], _Retry]) -> None:
        """`retries`: of actions that failed before, which wait for their times."""
        for action in actions:
            key = (_run_of(action), type(action))
            failed = retries.get(key)
            if failed is not None and self._clock.monotonic() < failed.at:
                self._retries[key] = failed
            elif await self._try_action(action):
                # Nothing follows from a removal, and a stop is repeated until all have ended, which `watch` detects.
                if not isinstance(action, Stop | Remove):
                    self._changed.set()
            else:
                failures = failed.failures + 1 if failed else 1
                self._retries[key] = _Retry(failures, self._clock.monotonic() + _backoff(failures))

    async def _try_action(self, action: Action) -> bool:
        try:
            await self._execute(action)
        except TrainyardError as error:
            what, run_id = type(action).__name__, _run_of(action)
            _log.warning("%s of run %s failed; trying again: %s", what, run_id, error.message)
            return False
        except Exception as error:  # noqa: BLE001 - one run must not block the others
            _log_failure(f"{type(action).__name__} of run {_run_of(action)} failed", error)
            return False
        return True

    async def _execute(self, action: Action) -> None:
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
                self._handles.pop(run_id, None)
                self._given_up.pop(run_id, None)
                self._lost.discard(run_id)
                self._stopped.discard(run_id)
                self._exit_notes.forget(run_id)
                _log.info("removed run %s", run_id)

    async def _start(self, order: RunOrder, staging: Staging) -> None:
        """Raises TrainyardError while the server does not give the run's secrets."""
        secrets: dict[str, str] = {}
        if order.training_input.secrets:
            try:
                secrets = (await self._control_plane.secrets(order.run_id)).values
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
                environment = self._info().environment_in(placed.runtime)
                gang = launches(
                    order,
                    placed.addresses,
                    staging,
                    environment,
                    secrets,
                    placed.interface,
                    mounts,
                    self._tracking.uri_in(placed.runtime),
                    self._tracking.ca_file,
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
            self._handles[order.run_id] = await asyncio.to_thread(place_and_start)
        except StartFailed as failure:
            others = "It was not started, because another replica of its run could not be."
            ends = {replica.task: (Reason.STOPPED, others) for replica in order.replicas}
            ends[failure.task] = (failure.reason, Mask(secrets.values()).text(failure.message))
            await self._stager.discard(order.run_id)
            await self._give_up(order, ends)
        else:
            self._shipper.begin(order.run_id, self._handles[order.run_id].addresses)
            _log.info("started run %d of job %s (%s)", order.number, order.job_id, order.run_id)

    def _mounts_of(self, order: RunOrder, job_dir: str) -> tuple[Mount, ...]:
        """The mounts of a placed run. Raises StartFailed, after the run was removed."""
        try:
            return self._mounts.of(order, job_dir)
        except StartFailed:
            self._runtime.remove(order.run_id)
            raise

    async def _stop(self, run_id: str, grace_s: float, reason: Reason = STOPPED) -> None:
        self._stopped.add(run_id)
        await asyncio.to_thread(self._runtime.stop, run_id, grace_s, reason)

    async def _give_up_lost(self, run_id: str) -> None:
        """End a launched run that the runtime no longer has, and report that: its files were removed, by hand or by its
        own program."""
        del self._handles[run_id]
        self._lost.add(run_id)
        try:
            await asyncio.to_thread(self._runtime.remove, run_id)
        except Exception as error:  # noqa: BLE001 - one run must not block the others
            _log_failure(f"what is left of run {run_id} cannot be ended", error)
        order = self._orders.get(run_id)
        if order is not None:
            end = (Reason.VANISHED, "Its directory on the machine is gone.")
            await self._give_up(order, {replica.task: end for replica in order.replicas})

    async def _give_up(self, order: RunOrder, ends: dict[str, tuple[Reason, str]]) -> None:
        """Report the run as ended. A full disk is the machine's fault; the next report has it, so nothing else starts
        there."""
        is_disks = any(tells_of_disk(message) for _, message in ends.values())
        suspect = Path(order.directory) if is_disks and order.directory.startswith("/") else None
        now, no_room = self._clock.now(), await asyncio.to_thread(self._disks.look, suspect)
        ends = {task: blamed_on_disk(*end, no_room) for task, end in ends.items()}
        self._given_up[order.run_id] = tuple(
            ReplicaReport(
                task=task,
                state=ReplicaState.EXITED,
                exit=never_ran(reason, message, now, after_stop=reason is Reason.STOPPED),
            )
            for task, (reason, message) in ends.items()
        )
        for task, (reason, message) in ends.items():
            _log.info("run %s: %s %s (%s)", order.run_id, task, message, reason)

    async def _enforce_lease(self) -> None:
        """Stop the runs whose lease expires, each despite failures of others: the server may start them elsewhere."""
        expiring = [handle for handle in self._handles.values() if self._lease.must_stop(handle.grace_s)]
        stops = [
            self._stop(handle.run_id, self._lease.grace_left(handle.grace_s), Reason.HOST_LOST) for handle in expiring
        ]
        for outcome in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _enforce_start_deadline(self) -> None:
        """Stop the runs whose engine does not start them: each waits for a new run in the server's queue."""
        for run_id, message in self._start_deadline.overdue(self._observed, self._clock.monotonic()).items():
            if run_id in self._handles:
                grace_s = self._handles[run_id].grace_s
                await self._stop(run_id, grace_s, Reason.GIVEN_BACK)
                self._start_deadline.give_back(run_id, message)
                _log.warning("run %s is given back: %s", run_id, message)


def _log_failure(what: str, error: Exception) -> None:
    """An engine that is away is one line; all else is a bug of ours."""
    if isinstance(error, EngineUnavailable):
        _log.warning("%s; trying again: %s", what, error)
    else:
        _log.error("%s; trying again", what, exc_info=error)


def _run_of(action: Action) -> str:
    match action:
        case Prepare(order) | PlacePart(order) | AskParts(order) | Start(order) | GiveUp(order):
            return order.run_id
        case Stop(run_id) | Remove(run_id):
            return run_id


def _backoff(failures: int) -> float:
    """Seconds to wait after this many failures in a row, with jitter so that agents spread out."""
    longest = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 10))
    return longest * _jitter.uniform(0.5, 1.0)
