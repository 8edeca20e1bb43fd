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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from trainyard_agent.control.launch import launches
from trainyard_agent.control.log_shipper import LogShipper
from trainyard_agent.control.reconcile import (
    Action,
    GiveUp,
    LocalRun,
    Prepare,
    Remove,
    Start,
    Stop,
    reconcile,
)
from trainyard_agent.host.clock import Clock
from trainyard_agent.lease.lease import Lease
from trainyard_agent.monitoring.nvidia_smi import NvidiaSmi
from trainyard_agent.monitoring.stack_dump import StackDumper
from trainyard_agent.monitoring.stall_monitor import POLL_S, StallMonitor
from trainyard_agent.monitoring.usage_reporter import USAGE_S, UsageReporter
from trainyard_agent.runtimes.base import Handle, Runtime, StartFailed
from trainyard_agent.runtimes.exits import never_ran
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.base import Stager, Staging
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.sync import (
    AgentInfo,
    ReplicaReport,
    RunOrder,
    RunReport,
    SyncRequest,
    SyncResponse,
)

HOLD_S = 20.0
"""How long the server may hold an answer."""

WATCH_S = 0.1
"""Between two observations of the replicas."""

SHIP_S = 0.2
"""Between two reads of their logs: lines written in between are sent together."""

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
    ) -> None:
        """`info`: what the agent offers now, which may change. `usage_s`: seconds between two usage measurements; 0:
        none."""
        self._runtime = runtime
        self._control_plane = control_plane
        self._stager = stager
        self._clock = clock
        self._info = info
        self._lease = lease or Lease(clock)
        self._stall_monitor = StallMonitor(runtime, clock, StackDumper(runtime))
        driver = NvidiaSmi() if info().capacity.gpus else None
        self._usage_reporter = UsageReporter(runtime, control_plane, clock, driver)
        self._usage_s = usage_s
        self._shipper = LogShipper(control_plane, runtime, watch=self._stall_monitor.ingest)
        self._recovered = False
        self._handles: dict[str, Handle] = {}
        self._orders: dict[str, RunOrder] = {}
        self._given_up: dict[str, tuple[ReplicaReport, ...]] = {}
        self._observed: _Observed = {}
        self._unobservable: set[str] = set()
        self._retries: dict[tuple[str, type[Action]], _Retry] = {}
        self._version = ""
        self._reported: SyncRequest | None = None
        self._changed = asyncio.Event()
        self._hold_s = 0.0
        self._last_error = ""

    async def run(self) -> None:
        """Run until cancelled. Replicas keep running; staging in progress is cancelled."""
        try:
            await self._recover()
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._repeat(self._sync_round, _MIN_SYNC_PAUSE_S))
                loops.create_task(self._repeat(self._watch_round, WATCH_S))
                loops.create_task(self._repeat(self._ship, SHIP_S))
                loops.create_task(self._repeat(self._check_stalls, POLL_S))
                if self._usage_s:
                    loops.create_task(self._repeat(self._report_usage, self._usage_s))
        finally:
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
            await self._enforce_lease()
        with contextlib.suppress(TrainyardError):  # the same error as above
            await self._ship()
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

    # The loops.

    async def _repeat(self, work: Callable[[], Awaitable[bool | None]], pause_s: float) -> None:
        """Repeat for ever, with a pause in between: longer after a failure, none if a round returns that there is more
        to do. No error of a round ends the agent, which would leave its replicas alone."""
        failures, more = 0, False
        while True:
            try:
                more = bool(await work())
                failures = 0
            except TrainyardError:
                failures += 1  # logged by `_handle_answer`, once
            except Exception:  # noqa: BLE001 - see the docstring
                failures += 1
                _log.exception("a round failed; trying again")
            await self._clock.sleep(_backoff(failures) if failures else 0.0 if more else pause_s)

    async def _sync_round(self) -> None:
        """One sync. The server holds its answer, unless something has changed here or the last sync failed."""
        hold_s, self._hold_s = self._hold_s, 0.0
        self._changed.clear()
        request = await self._request(hold_s)
        if hold_s:
            await self._sync_unless_changed(request)
        else:
            await self._sync(request)
        self._hold_s = 0.0 if self._changed.is_set() else HOLD_S

    async def _watch_round(self) -> None:
        await self._enforce_lease()
        retry = any(retry.at <= self._clock.monotonic() for retry in self._retries.values())
        if retry or await self._has_changed():
            self._changed.set()

    async def _has_changed(self) -> bool:
        """Whether a report would differ from the last one that the server has answered."""
        before = self._reported
        if before is None:
            return False
        return self._info().reported() != before.agent or await self._reports() != before.runs

    # Sync.

    async def _sync_unless_changed(self, request: SyncRequest) -> None:
        """A long poll, cancelled when something changes here."""
        sync = asyncio.create_task(self._control_plane.sync(request))
        change = asyncio.create_task(self._changed.wait())
        sent = self._clock.monotonic()
        try:
            await asyncio.wait({sync, change}, return_when=asyncio.FIRST_COMPLETED)
            if sync.done():
                await self._handle_answer(request, sync, sent)
        finally:
            for task in (sync, change):
                task.cancel()
            await asyncio.gather(sync, change, return_exceptions=True)

    async def _sync(self, request: SyncRequest) -> None:
        await self._handle_answer(request, self._control_plane.sync(request), self._clock.monotonic())

    async def _handle_answer(
        self, request: SyncRequest, answer: Awaitable[SyncResponse], sent: float
    ) -> None:
        """Act on the answer to a request that was sent at `sent`. Logs repeated errors once, and raises them."""
        try:
            response = await answer
        except TrainyardError as error:
            self._reported = None
            if error.message != self._last_error:
                _log.warning("%s Replicas keep running; trying again.", error.message)
            self._last_error = error.message
            raise
        if self._last_error:
            _log.info("the server answers again")
        self._last_error = ""
        try:
            self._lease.renew(sent, response.lease_s)
        except OSError as error:  # renewed in memory: the watchdog acts earlier
            _log.warning("the lease is not saved or has no watchdog: %s", error)
        self._reported = request
        await self._act(response)

    async def _request(self, wait_s: float) -> SyncRequest:
        return SyncRequest(
            agent=self._info().reported(), runs=await self._reports(), wait_s=wait_s, seen=self._version
        )

    async def _ship(self) -> bool:
        """True if more can be sent at once."""
        logs = [(handle.run_id, task) for handle in self._handles.values() for task in handle.addresses]
        logs += [(run_id, report.task) for run_id, reports in self._given_up.items() for report in reports]
        return await self._shipper.ship(logs)

    async def _check_stalls(self) -> None:
        await self._stall_monitor.poll(list(self._orders.values()), self._observed)

    async def _report_usage(self) -> None:
        await self._usage_reporter.report(list(self._orders.values()), self._observed)

    # Observation.

    async def _reports(self) -> tuple[RunReport, ...]:
        """A report for every run that the runtime holds or the server ordered."""
        observed = await self._observe()
        staging = self._stager.status()
        reports = [
            RunReport(
                run_id=run_id,
                replicas=self._stall_monitor.annotate(run_id, replicas),
                runtime=self._handles[run_id].runtime,
                runtime_reason=staging[run_id].runtime_reason if run_id in staging else "",
            )
            for run_id, replicas in observed.items()
            if run_id in self._handles
        ]
        for run_id, order in self._orders.items():
            if run_id in observed or run_id in self._given_up:
                continue
            pending = tuple(
                ReplicaReport(task=replica.task, state=ReplicaState.PENDING) for replica in order.replicas
            )
            prepared = staging.get(run_id, _NOTHING_STAGED)
            reports.append(
                RunReport(
                    run_id=run_id,
                    replicas=pending,
                    activity=prepared.activity,
                    runtime=prepared.runtime,
                    runtime_reason=prepared.runtime_reason,
                )
            )
        reports += [RunReport(run_id=run_id, replicas=exits) for run_id, exits in self._given_up.items()]
        return tuple(sorted(reports, key=lambda report: report.run_id))

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
        except Exception:
            if run_id not in self._observed:
                raise
            if run_id not in self._unobservable:
                _log.exception("run %s cannot be observed; trying again", run_id)
            self._unobservable.add(run_id)
            return self._observed[run_id]
        self._unobservable.discard(run_id)
        return reports

    # Actions.

    async def _act(self, response: SyncResponse) -> None:
        self._orders = {order.run_id: order for order in response.runs}
        observed = await self._observe()
        for run_id in self._handles.keys() - observed.keys():
            self._give_up_lost(run_id)
        local = {
            run_id: LocalRun(any(r.exit is None for r in replicas), self._handles[run_id].grace_s)
            for run_id, replicas in observed.items()
        }
        actions = reconcile(
            response.runs,
            local,
            self._stager.status(),
            self._given_up.keys(),
            no_images=_why_no_images(self._info()),
        )
        retries, self._retries = self._retries, {}
        for action in actions:
            key = (_run_of(action), type(action))
            failed = retries.get(key)
            if failed is not None and self._clock.monotonic() < failed.at:
                self._retries[key] = failed
            elif await self._try_action(action):
                if not isinstance(action, Stop):  # repeated until all have ended, which `watch` detects
                    self._changed.set()
            else:
                failures = failed.failures + 1 if failed else 1
                self._retries[key] = _Retry(failures, self._clock.monotonic() + _backoff(failures))
        self._version = response.version

    async def _try_action(self, action: Action) -> bool:
        try:
            await self._execute(action)
        except Exception:  # noqa: BLE001 - one run must not block the others
            _log.exception("%s of run %s failed; trying again", type(action).__name__, _run_of(action))
            return False
        return True

    async def _execute(self, action: Action) -> None:
        match action:
            case Prepare(order):
                self._stager.begin(order)
            case Start(order, staging):
                await self._start(order, staging)
            case GiveUp(order, reason, message):
                await self._stager.discard(order.run_id)
                self._give_up(order, {replica.task: (reason, message) for replica in order.replicas})
            case Stop(run_id, grace_s):
                await asyncio.to_thread(self._runtime.stop, run_id, grace_s)
            case Remove(run_id):
                await asyncio.to_thread(self._runtime.remove, run_id)
                await self._stager.discard(run_id)
                self._handles.pop(run_id, None)
                self._given_up.pop(run_id, None)
                _log.info("removed run %s", run_id)

    async def _start(self, order: RunOrder, staging: Staging) -> None:
        def place_and_start() -> Handle:
            try:
                placed = self._runtime.place(order)
                environment = self._info().environment_in(placed.runtime)
                gang = launches(order, placed.addresses, staging, environment)
                return self._runtime.start(order.run_id, gang)
            except StartFailed:
                raise
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
            ends[failure.task] = (failure.reason, failure.message)
            await self._stager.discard(order.run_id)
            self._give_up(order, ends)
        else:
            _log.info("started run %d of job %s (%s)", order.number, order.job_id, order.run_id)

    def _give_up_lost(self, run_id: str) -> None:
        """Report the end of a launched run that the runtime no longer has: its files were removed by hand."""
        del self._handles[run_id]
        order = self._orders.get(run_id)
        if order is not None:
            end = (Reason.VANISHED, "Its directory on the machine is gone.")
            self._give_up(order, {replica.task: end for replica in order.replicas})

    def _give_up(self, order: RunOrder, ends: dict[str, tuple[Reason, str]]) -> None:
        now = self._clock.now()
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
            asyncio.to_thread(
                self._runtime.stop, handle.run_id, self._lease.grace_left(handle.grace_s), Reason.HOST_LOST
            )
            for handle in expiring
        ]
        for outcome in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome


def _why_no_images(info: AgentInfo) -> str:
    """The reason why no job with an image can start now; "" if one can."""
    return "" if info.runs_images else info.engine_problem or "this agent starts no containers"


def _run_of(action: Action) -> str:
    match action:
        case Prepare(order) | Start(order) | GiveUp(order):
            return order.run_id
        case Stop(run_id) | Remove(run_id):
            return run_id


def _backoff(failures: int) -> float:
    """Seconds to wait after this many failures in a row, with jitter so that agents spread out."""
    longest = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 10))
    return longest * _jitter.uniform(0.5, 1.0)
