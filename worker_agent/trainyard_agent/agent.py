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
from typing import NamedTuple

from trainyard_agent.agent_parts import AgentParts
from trainyard_agent.attachments.attachments import ReplicaAttachments
from trainyard_agent.control.log_shipper import SILENT_EVERY, LogShipper
from trainyard_agent.control.reconcile import Action, AskParts, GiveUp, PlacePart, Prepare, Remove, Start, Stop
from trainyard_agent.control.server_clock import ServerClock
from trainyard_agent.local_runs import LocalRuns, log_failure
from trainyard_agent.monitoring.nvidia_smi import NvidiaSmi
from trainyard_agent.monitoring.stack_dump import StackDumper
from trainyard_agent.monitoring.stall_monitor import POLL_S, StallMonitor
from trainyard_agent.monitoring.usage_reporter import UsageReporter
from trainyard_agent.runtimes.base import EngineUnavailable
from trainyard_protocol.answers.agents import ANSWERED, REFUSED
from trainyard_protocol.errors import PermissionDenied, TrainyardError, Unauthenticated
from trainyard_protocol.job.resources import is_tpu
from trainyard_protocol.wire.sync import SyncRequest, SyncResponse

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

_log = logging.getLogger(__name__)
_jitter = random.SystemRandom()


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
    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self._runtime, self._control_plane, self._clock = parts.runtime, parts.control_plane, parts.clock
        self._stager, self._lease, self._members = parts.stager, parts.lease, parts.members
        self._attachments = ReplicaAttachments(parts.runtime, parts.control_plane)
        self._server_clock = ServerClock()
        self._echo = ""
        self._name = parts.info().name
        self._stall_monitor = StallMonitor(parts.runtime, parts.clock, StackDumper(parts.runtime))
        driver = NvidiaSmi() if any(not is_tpu(gpu.type) for gpu in parts.info().capacity.gpus) else None
        self._usage_reporter = UsageReporter(parts.runtime, parts.control_plane, parts.clock, driver)
        self._shipper = LogShipper(parts.control_plane, parts.runtime, watch=self._stall_monitor.ingest)
        self._runs = LocalRuns(parts, self._stall_monitor, self._shipper)
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
                if self._parts.usage_s:
                    loops.create_task(self._repeat(self._report_usage, self._parts.usage_s))
        finally:
            unsubscribe()
            self._attachments.close()
            await self._stager.close()

    async def step(self, wait_s: float = 0.0) -> bool:
        """Run each loop once, in turn: sync, act on the answer, send logs. False if the server did not answer.

        For tests; `run` does the same concurrently.
        """
        await self._runs.recover()
        answered = True
        try:
            await self._sync(await self._request(wait_s))
        except TrainyardError:
            answered = False
        await self._members.round()
        await self._runs.enforce_lease()
        with contextlib.suppress(TrainyardError):  # the same error as above
            await self._ship()
        await self._runs.enforce_start_deadline()
        await self._check_stalls()
        if self._parts.usage_s:
            await self._report_usage()
        return answered

    async def _recover_when_possible(self) -> None:
        """Recover once the engine answers."""
        failures = 0
        while not self._runs.is_recovered:
            try:
                await self._runs.recover()
            except EngineUnavailable as error:
                failures += 1
                log_failure("the runs of the agent before cannot be recovered", error)
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
                log_failure("a round failed", error)
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
        await self._runs.enforce_lease()
        self._woken.clear()
        await self._runs.enforce_start_deadline()
        sent, offered = self._sent, self._parts.info().reported()
        if any(retry.at <= self._clock.monotonic() for retry in self._retries.values()) or (
            sent is not None and (offered != sent.agent or await self._runs.reports() != sent.runs)
        ):
            self._changed.set()
        if self._retries or not self._runs.is_quiet():
            return WATCH_S
        handles = self._runs.handles.values()
        stop_in = min((self._lease.stop_in(handle.grace_s) for handle in handles), default=QUIET_WATCH_S)
        return max(WATCH_S, min(QUIET_WATCH_S, stop_in - WATCH_S))

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
            agent=self._parts.info().reported(),
            runs=await self._runs.reports(),
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
        logs = [(handle.run_id, task) for handle in self._runs.handles.values() for task in handle.addresses]
        # That they are empty is said only once the server knows their end: an agent that follows may start the run.
        reported = self._reported.runs if self._reported is not None and self._runs.given_up else ()
        given_up = [
            (run.run_id, report.task)
            for run in reported
            if run.replicas == self._runs.given_up.get(run.run_id)
            for report in run.replicas
        ]
        unstarted = [key for key in given_up if key[0] not in self._runs.lost]
        logs += [(run_id, report.task) for run_id in self._runs.lost for report in self._runs.given_up.get(run_id, ())]
        if await self._shipper.ship(logs, woken, unstarted):
            return 0.0
        return SHIP_S * SILENT_EVERY if self._shipper.is_silent and self._runtime.traits.tells_changes else SHIP_S

    async def _check_stalls(self) -> None:
        await self._stall_monitor.poll(list(self._runs.orders.values()), self._runs.observed)

    async def _report_usage(self) -> None:
        await self._usage_reporter.report(list(self._runs.orders.values()), self._runs.observed)

    async def _act(self, response: SyncResponse) -> None:
        local = await self._runs.follow(response.runs)
        retries, self._retries = self._retries, {}
        actions = self._runs.actions(local)
        await self._try_all(actions, retries)
        begun = {action.order.run_id for action in actions if isinstance(action, Prepare)}
        if begun:  # what is prepared soon starts without another sync
            await self._stager.settle(begun, _SOON_S)
            prepared = [step for step in self._runs.actions(local) if isinstance(step, Start | PlacePart | GiveUp)]
            await self._try_all([step for step in prepared if step.order.run_id in begun], retries)
        self._attachments.follow(response.attachments)
        self._version = response.version
        self._woken.set()

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
            await self._runs.execute(action)
        except TrainyardError as error:
            what, run_id = type(action).__name__, _run_of(action)
            _log.warning("%s of run %s failed; trying again: %s", what, run_id, error.message)
            return False
        except Exception as error:  # noqa: BLE001 - one run must not block the others
            log_failure(f"{type(action).__name__} of run {_run_of(action)} failed", error)
            return False
        return True


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
