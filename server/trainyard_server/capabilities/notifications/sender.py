"""Delivery of notifications, with retries.

A notification is sent until its receiver has accepted it, so each arrives at least once, under the same id, whenever a
server ends. Those of one job arrive at an address in their order. A project makes one attempt at an address at a time.
Attempts begin in turns by project, and are bounded in all, by project and by receiver: a receiver that does not answer
costs nobody else.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from trainyard_protocol.errors import ResourceExhausted
from trainyard_protocol.job.keys.notifications import Transport
from trainyard_server.capabilities.notifications import delivery, store, turns
from trainyard_server.capabilities.notifications.collecting import Collector
from trainyard_server.capabilities.notifications.mail import Mail
from trainyard_server.capabilities.notifications.tables import NotificationRow
from trainyard_server.capabilities.notifications.turns import Lane
from trainyard_server.capabilities.notifications.webhooks import DeliveryFailure, Webhooks
from trainyard_server.context import Backend
from trainyard_server.storage.events.notifier import NOTIFICATIONS_TOPIC
from trainyard_server.storage.failures import FailureLog

_NOT_RECORDED = "The delivery of notifications cannot be recorded"

_REMEMBERED = 2000
"""Projects whose turn, and lanes whose failures, are remembered."""

_TESTS, _TESTS_OF_PROJECT = 16, 2

Result = TypeVar("Result")
Key = TypeVar("Key")
Value = TypeVar("Value")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Failures:
    """Failures in a row of a lane, and the cause of the last."""

    count: int = 0
    cause: str = ""


class Sender:
    """Call `step` now and then, in one event loop of one server."""

    def __init__(self, backend: Backend, webhooks: Webhooks, mail: Mail) -> None:
        self._backend = backend
        self._collector = Collector(backend)
        self._webhooks = webhooks
        self._mail = mail
        self._outbox = ThreadPoolExecutor(1, "outbox")
        """The only thread that reads and writes notifications here: nothing that is sent holds it."""
        self._attempts: dict[Lane, asyncio.Task[None]] = {}
        """The attempt that is being made on each lane."""
        self._served: dict[str, None] = {}
        """Projects, the most recently served last."""
        self._failed: dict[Lane, _Failures] = {}
        self._tests: list[str] = []
        """The project of each test that is being sent."""
        self._failures = FailureLog(logger)

    async def step(self) -> None:
        """Write the notifications of new events, and begin the attempts that are due."""
        for lane, row in await self._in_outbox(partial(self._due, tuple(self._attempts), tuple(self._served))):
            self._attempts[lane] = asyncio.create_task(self._attempt(lane, row))
            _remember(self._served, lane.project, None)

    async def settle(self) -> None:
        """Wait for the attempts that have begun."""
        await asyncio.gather(*self._attempts.values())

    async def close(self) -> None:
        """Give up the attempts that have begun: the next server makes them again."""
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        await asyncio.to_thread(self._outbox.shutdown, cancel_futures=True)

    async def test(self, row: NotificationRow) -> DeliveryFailure | None:
        """Make one attempt now, without recording it. Raises ResourceExhausted."""
        if self._tests.count(row.project) >= _TESTS_OF_PROJECT or len(self._tests) >= _TESTS:
            raise ResourceExhausted(
                f"{len(self._tests)} tests of channels are being sent, {self._tests.count(row.project)} of the project "
                f"{row.project}: {_TESTS} may be, {_TESTS_OF_PROJECT} of each project. Try again in a minute."
            )
        self._tests.append(row.project)
        try:
            failure = await self._outcome(row)
        finally:
            self._tests.remove(row.project)
        if failure is not None and failure.cause:
            _log_cause(row, failure)
        return failure

    async def send(self, row: NotificationRow) -> DeliveryFailure | None:
        """Make one attempt, without recording it."""
        now = self._backend.clock()
        if row.transport == Transport.MAIL:
            return await self._mail.send(row.address, row.project, row.id, row.content, now)
        transport = Transport(row.transport)
        return await self._webhooks.send(row.address, transport, row.project, row.id, row.content, now)

    def _due(self, in_flight: Sequence[Lane], served: Sequence[str]) -> Sequence[tuple[Lane, NotificationRow]]:
        self._collector.collect()
        with self._backend.store.read() as reader:
            due = {lane: key for key, lane in store.due(reader, self._backend.clock(), in_flight)}
            if not due:
                return ()
            begun = {due[lane]: lane for lane in turns.next_lanes(tuple(due), in_flight, served)}
            return [(begun[row.key], row) for row in store.of_keys(reader, tuple(begun))]

    async def _in_outbox(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._outbox, function)

    async def _outcome(self, row: NotificationRow) -> DeliveryFailure | None:
        try:
            return await self.send(row)
        except Exception as error:
            logger.exception("A notification of %s of %s could not be made", row.job_id, row.project)
            return DeliveryFailure(f"it could not be made ({type(error).__name__})", of_receiver=False)

    async def _attempt(self, lane: Lane, row: NotificationRow) -> None:
        try:
            failure = await self._outcome(row)
            await self._in_outbox(partial(self._record, lane, row, failure))
        except Exception as error:  # noqa: BLE001 - logged, and made again
            self._failures.record(_NOT_RECORDED, error)
        else:
            self._failures.resolved(_NOT_RECORDED, "The delivery of notifications is recorded again.")
            self._backend.notifier.publish(NOTIFICATIONS_TOPIC)  # the next one may be due
        finally:
            del self._attempts[lane]

    def _record(self, lane: Lane, row: NotificationRow, failure: DeliveryFailure | None) -> None:
        now, attempts = self._backend.clock(), row.attempts + 1
        if failure is None:
            self._failed.pop(lane, None)
            with self._backend.store.write() as writer:
                store.record_attempt(
                    writer, row.key, attempts=attempts, state=store.DELIVERED, delivered_at=now, error=""
                )
            return
        is_last = failure.is_final or now - row.created_at >= delivery.GIVE_UP_AFTER
        values: dict[str, Any] = {
            "attempts": attempts,
            "state": store.FAILED if is_last else store.PENDING,
            "next_at": now + delivery.pause(attempts),
            "error": failure.reason,
        }
        rest = self._rest(lane, row, failure)
        with self._backend.store.write() as writer:
            store.record_attempt(writer, row.key, **values)
            if rest:
                store.postpone(writer, lane, now + rest)
        if is_last:
            logger.warning(
                "A notification of the job %s of %s to %s is given up: %s",
                row.job_id,
                row.project,
                row.channel or "its own destination",
                failure.reason,
            )

    def _rest(self, lane: Lane, row: NotificationRow, failure: DeliveryFailure) -> timedelta:
        """The rest of a lane after a failure. Its cause is logged when it is a new one."""
        if not failure.of_receiver:
            return timedelta()
        before = self._failed.get(lane, _Failures())
        _remember(self._failed, lane, _Failures(before.count + 1, failure.cause))
        if failure.cause not in ("", before.cause):
            _log_cause(row, failure)
        return delivery.pause(before.count + 1)


def _log_cause(row: NotificationRow, failure: DeliveryFailure) -> None:
    logger.warning(
        "Notifications of %s do not reach %s (%s): %s",
        row.project,
        row.receiver,
        row.channel or f"a destination of the job {row.job_id}",
        failure.cause,
    )


def _remember(memory: dict[Key, Value], key: Key, value: Value) -> None:
    """Set a value as the newest, and forget the oldest beyond the bound."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > _REMEMBERED:
        del memory[next(iter(memory))]
