"""Delivery of notifications, with retries.

A notification is sent until its receiver has accepted it, so each arrives at least once, under the same id, whenever a
server ends. Those of one job arrive at an address in their order. One attempt is made at an address at a time, beside
those at other addresses: a receiver that does not answer costs nobody else.
"""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from trainyard_protocol.job.config.notification_rules import Transport
from trainyard_server.context import Backend
from trainyard_server.domain.notifications import delivery
from trainyard_server.services.notifications.collecting import Collector
from trainyard_server.services.notifications.mail import Mail
from trainyard_server.services.notifications.webhooks import DeliveryFailure, Webhooks
from trainyard_server.storage.db.base.models import NotificationRow
from trainyard_server.storage.db.tables import notifications as rows
from trainyard_server.storage.events.notifier import NOTIFICATIONS_TOPIC
from trainyard_server.storage.failures import FailureLog

_NOT_RECORDED = "The delivery of notifications cannot be recorded"

logger = logging.getLogger(__name__)


class Sender:
    """Call `step` now and then, in one event loop of one server."""

    def __init__(self, backend: Backend, webhooks: Webhooks, mail: Mail) -> None:
        self._backend = backend
        self._collector = Collector(backend)
        self._webhooks = webhooks
        self._mail = mail
        self._mails = ThreadPoolExecutor(1, "mail")
        self._attempts: dict[str, asyncio.Task[None]] = {}
        """The attempt that is being made at each address."""
        self._failed: dict[str, int] = {}
        """Failures in a row of addresses."""
        self._failures = FailureLog(logger)

    async def step(self) -> None:
        """Write the notifications of new events, and begin the attempts that are due."""
        for row in await asyncio.to_thread(self._due):
            self._attempts[row.address] = asyncio.create_task(self._attempt(row))

    async def settle(self) -> None:
        """Wait for the attempts that have begun."""
        await asyncio.gather(*self._attempts.values())

    async def close(self) -> None:
        """Give up the attempts that have begun: the next server makes them again."""
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        self._mails.shutdown(wait=False, cancel_futures=True)

    async def send(self, row: NotificationRow) -> DeliveryFailure | None:
        """Make one attempt, without recording it."""
        now = self._backend.clock()
        if row.transport == Transport.MAIL:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._mails, self._mail.send, row.address, row.id, row.content, now)
        transport = Transport(row.transport)
        return await self._webhooks.send(row.address, transport, row.project, row.id, row.content, now)

    def _due(self) -> Sequence[NotificationRow]:
        self._collector.collect()
        with self._backend.store.read() as reader:
            return rows.due(reader, self._backend.clock(), list(self._attempts))

    async def _attempt(self, row: NotificationRow) -> None:
        try:
            try:
                failure = await self.send(row)
            except Exception as error:
                logger.exception("A notification of %s of %s could not be made", row.job_id, row.project)
                failure = DeliveryFailure(f"it could not be made ({type(error).__name__})", of_receiver=False)
            await asyncio.to_thread(self._record, row, failure)
        except Exception as error:  # noqa: BLE001 - logged, and made again
            self._failures.record(_NOT_RECORDED, error)
        else:
            self._failures.resolved(_NOT_RECORDED, "The delivery of notifications is recorded again.")
            self._backend.notifier.publish(NOTIFICATIONS_TOPIC)  # the next one may be due
        finally:
            del self._attempts[row.address]

    def _record(self, row: NotificationRow, failure: DeliveryFailure | None) -> None:
        now, attempts = self._backend.clock(), row.attempts + 1
        if failure is None:
            self._failed.pop(row.address, None)
            with self._backend.store.write() as writer:
                rows.record_attempt(
                    writer, row.key, attempts=attempts, state=rows.DELIVERED, delivered_at=now, error=""
                )
            return
        is_last = failure.is_final or now - row.created_at >= delivery.GIVE_UP_AFTER
        values: dict[str, Any] = {
            "attempts": attempts,
            "state": rows.FAILED if is_last else rows.PENDING,
            "next_at": now + delivery.pause(attempts),
            "error": failure.reason,
        }
        rest = timedelta()
        if failure.of_receiver:
            self._failed[row.address] = self._failed.get(row.address, 0) + 1
            rest = delivery.pause(self._failed[row.address])
        with self._backend.store.write() as writer:
            rows.record_attempt(writer, row.key, **values)
            if rest:
                rows.postpone(writer, row.address, now + rest)
        if is_last:
            receiver = row.channel or "its own destination"
            logger.warning(
                "A notification of the job %s of %s to %s is given up: %s",
                row.job_id,
                row.project,
                receiver,
                failure.reason,
            )
