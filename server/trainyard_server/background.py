"""Background loops of the server: scheduler ticks, and writing the progress of replicas to the database."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.concurrency import run_in_threadpool

from trainyard_server.capability import Loop
from trainyard_server.control.leader_election import LeaderElection
from trainyard_server.storage.events.notifier import QUEUE_TOPIC, Notifier
from trainyard_server.storage.failures import FailureLog
from trainyard_server.use_cases import UseCases

logger = logging.getLogger(__name__)

_REST = 2.0
"""Least pause between two ticks, as a multiple of the first one's time."""
_TICK_FAILURE = "Jobs cannot be moved forward"
_MEASURE_S = 5.0
_PAUSE_S = 0.1  # between two steps: in a burst of changes others get the processor, too


async def tick_forever(cases: UseCases, leadership: LeaderElection) -> None:
    """Tick every `tick_s` and whenever the queue changes, until the notifier closes. A failure is logged once for each
    cause, and the next tick tries again."""
    failures, heartbeat = FailureLog(logger), cases.health.heartbeat
    notifier, tick_s = cases.backend.notifier, cases.backend.settings.tick_s

    def tick() -> None:
        if leadership.held():
            began = time.monotonic()
            cases.controller.tick()
            cases.backend.observations.round_ended(time.monotonic() - began)
        else:
            cases.controller.observe_agents()
        cases.audit.write_counts()

    with notifier.subscribe(QUEUE_TOPIC) as queue:
        while not notifier.closed:
            began = time.monotonic()
            try:
                await run_in_threadpool(tick)
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                heartbeat.failed(error)
                failures.record(_TICK_FAILURE, error)
            else:
                heartbeat.succeeded()
                failures.resolved(_TICK_FAILURE, "Jobs move forward again.")
            # In a burst of changes others get the processor, too.
            await asyncio.sleep(min(tick_s, _REST * (time.monotonic() - began)))
            await queue.wait(tick_s)


async def flush_forever(cases: UseCases) -> None:
    """Write the progress that this process has read every `tick_s`, and once more when the notifier closes."""
    backend, flush = cases.backend, partial(run_in_threadpool, cases.controller.flush_progress)
    await _repeat(backend.notifier, "closing", backend.settings.tick_s, flush, "Steps cannot be written")


async def measure_forever(cases: UseCases, leadership: LeaderElection) -> None:
    """Record the metrics in event files, in the process that ticks, until the notifier closes."""
    notifier = cases.backend.notifier

    async def measure() -> None:
        if leadership.is_held and not notifier.closed:
            await run_in_threadpool(cases.written_metrics.step, time.monotonic())

    await _repeat(notifier, "closing", _MEASURE_S, measure, "Metrics in event files cannot be recorded")


async def loop_forever(loop: Loop, cases: UseCases, leadership: LeaderElection) -> None:
    """Do the work of a capability, until the notifier closes."""
    notifier = cases.backend.notifier

    async def step() -> None:
        if notifier.closed or (loop.leads and not leadership.is_held):
            return
        done = await run_in_threadpool(loop.step, cases)
        if isinstance(done, Awaitable):
            await done

    await _repeat(notifier, loop.topic or "closing", loop.every_s, step, loop.failure)


async def _repeat(
    notifier: Notifier, topic: str, every_s: float, step: Callable[[], Awaitable[None]], failure: str
) -> None:
    """Do a step every so often and whenever the topic is published, until the notifier closes and once more then. A
    failure is logged once for each cause, and the next step tries again."""
    failures = FailureLog(logger)
    with notifier.subscribe(topic) as subscription:
        while not notifier.closed:
            await subscription.wait(every_s)
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                failures.record(failure, error)
            else:
                failures.resolved(failure, f"{failure.replace('cannot be', 'are')} again.")
            await asyncio.sleep(0 if notifier.closed else _PAUSE_S)
