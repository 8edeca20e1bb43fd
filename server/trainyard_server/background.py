"""Background loops of the server: scheduler ticks, and writing the progress of replicas to the database."""

import asyncio
import logging
import time

from starlette.concurrency import run_in_threadpool

from trainyard_server.control.controller import Controller
from trainyard_server.control.fair_share import FairShareUpdate
from trainyard_server.control.idle_gpus import IdleGpus
from trainyard_server.control.leader_election import LeaderElection
from trainyard_server.control.retention import Retention
from trainyard_server.control.usage_recording import UsageRecording
from trainyard_server.services.health.health import Heartbeat
from trainyard_server.services.measurements.written_metrics import WrittenMetrics
from trainyard_server.services.notifications.sender import Sender
from trainyard_server.services.people.audit import Audit
from trainyard_server.storage.events.notifier import NOTIFICATIONS_TOPIC, QUEUE_TOPIC, Notifier, progress_topic
from trainyard_server.storage.failures import FailureLog
from trainyard_server.storage.observations import Observations
from trainyard_server.storage.progress import ProgressTracker

logger = logging.getLogger(__name__)

_REST = 2.0
"""Least pause between two ticks, as a multiple of the first one's time."""

_TICK_FAILURE = "Jobs cannot be moved forward"

_NOTIFY_S = 2.0

_MEASURE_S = 5.0
_MEASURE_FAILURE = "Metrics in event files, and what runs used, cannot be recorded"


async def tick_forever(
    controller: Controller,
    retention: Retention,
    leadership: LeaderElection,
    notifier: Notifier,
    tick_s: float,
    audit: Audit,
    heartbeat: Heartbeat,
    observations: Observations,
) -> None:
    """Tick every `tick_s` and whenever the queue changes, until the notifier closes. A failure is logged once for each
    cause, and the next tick tries again."""
    failures = FailureLog(logger)

    def tick() -> None:
        if leadership.held():
            began = time.monotonic()
            controller.tick()
            observations.round_ended(time.monotonic() - began)
            retention.step()
        else:
            controller.observe_agents()
        audit.write_counts()

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


async def flush_forever(progress: ProgressTracker, notifier: Notifier, every_s: float) -> None:
    """Write the progress that this process has read every `every_s`, and once more when the notifier closes."""
    failures = FailureLog(logger)
    with notifier.subscribe("closing") as closing:
        while not notifier.closed:
            await closing.wait(every_s)
            try:
                notifier.publish(*map(progress_topic, await run_in_threadpool(progress.flush)))
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                failures.record("Steps cannot be written", error)
            else:
                failures.resolved("Steps cannot be written", "Steps are written again.")


async def measure_forever(
    written: WrittenMetrics,
    recording: UsageRecording,
    idle_gpus: IdleGpus,
    fair_share: FairShareUpdate,
    leadership: LeaderElection,
    notifier: Notifier,
) -> None:
    """Record the metrics in event files, and what ended runs used, in the process that ticks, until the notifier
    closes. How accounts stand is computed in each process."""
    failures = FailureLog(logger)
    with notifier.subscribe("closing") as closing:
        while not notifier.closed:
            await closing.wait(_MEASURE_S)
            try:
                if leadership.is_held and not notifier.closed:
                    await run_in_threadpool(written.step, time.monotonic())
                    await run_in_threadpool(recording.step)
                    await run_in_threadpool(idle_gpus.step, time.monotonic())
                await run_in_threadpool(fair_share.step, time.monotonic())
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                failures.record(_MEASURE_FAILURE, error)
            else:
                failures.resolved(_MEASURE_FAILURE, "Metrics in event files, and what runs used, are recorded again.")


async def notify_forever(sender: Sender, leadership: LeaderElection, notifier: Notifier) -> None:
    """Notify of events of jobs, in the process that ticks, until the notifier closes."""
    failures = FailureLog(logger)
    with notifier.subscribe(NOTIFICATIONS_TOPIC) as attempts:
        while not notifier.closed:
            try:
                if leadership.is_held:
                    await sender.step()
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                failures.record("Notifications cannot be sent", error)
            else:
                failures.resolved("Notifications cannot be sent", "Notifications are sent again.")
            await attempts.wait(_NOTIFY_S)
