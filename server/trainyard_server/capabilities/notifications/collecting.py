"""Notifications of what has happened to jobs: an event for each destination that gets it.

An event is recorded with the job's move, in one transaction (`notices`); a bound of a metric is compared with the
recorded metrics. `collect` writes their notifications and forgets the events, again in one transaction.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.job.keys.notifications import JobEvent, Notification, Transport, is_channel_name, transport_of
from trainyard_server.capabilities.notifications import content as contents
from trainyard_server.capabilities.notifications import store
from trainyard_server.capabilities.notifications.content import NotifiedJob
from trainyard_server.capabilities.notifications.store import Alert, Notice, Receiver
from trainyard_server.context import Backend
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import IDLE_GPUS, STALLED, Writer
from trainyard_server.storage.db.tables import job_values

STALLS = (STALLED, IDLE_GPUS)
"""Kinds of events that are told as a stall."""

logger = logging.getLogger(__name__)

KEPT_FOR = timedelta(days=7)
"""A notification after its creation, once it does not wait any more."""

_BOUNDS_AFTER_END = timedelta(minutes=10)
"""The time after a job's end in which its metrics may still be read from event files."""

_CLEAN_EVERY = timedelta(minutes=10)


class Collector:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._cleaned_at: datetime | None = None

    def collect(self) -> None:
        """Write the notifications of new events, and of metrics that are beyond a bound."""
        now = self._backend.clock()
        if self._cleaned_at is None or now - self._cleaned_at >= _CLEAN_EVERY:
            with self._backend.store.write() as writer:
                store.remove_old(writer, now - _BOUNDS_AFTER_END, now - KEPT_FOR)
            self._cleaned_at = now
        with self._backend.store.read() as reader:
            if not store.has_events(reader):
                return
        with self._backend.store.write() as writer:
            for alert in store.alerts(writer):
                self._add_bound(writer, alert, now)
                store.remove_alert(writer, alert)
            notices = store.notices(writer)
            for notice in notices:
                self._add_event(writer, notice, now)
            store.remove_notices(writer, [notice.key for notice in notices])

    def _add_bound(self, writer: Writer, alert: Alert, now: datetime) -> None:
        job = alert.job
        own = _asked_for(writer, job)[alert.position : alert.position + 1]
        receiver = _receiver(writer, job.project, own[0].to) if own else None
        if receiver is not None:
            content = contents.of_bound(self._described(writer, job), now, alert.bound, alert.value, alert.step)
            _add(writer, job, str(alert.bound), receiver, content, now)

    def _add_event(self, writer: Writer, notice: Notice, now: datetime) -> None:
        """Add a notification for each destination that gets the event."""
        job, event = notice.job, notice.event
        if event.kind not in STALLS and job.study_key is not None:
            return  # a study tells its own end, not that of each trial
        events = (JobEvent.STALL,) if event.kind in STALLS else contents.events_of_end(job.state)
        receivers: dict[str, tuple[Receiver, JobEvent]] = {}
        for event_name, receiver in _receivers(writer, job.project, _asked_for(writer, job), events):
            receivers.setdefault(receiver.address, (receiver, event_name))
        if not receivers:
            return
        described = self._described(writer, job)
        if event.kind in STALLS:
            content = contents.of_stall(described, event.time, event.message)
        else:
            content = contents.of_end(described, event.time)
        for receiver, event_name in receivers.values():
            _add(writer, job, event_name, receiver, content, now)

    def _described(self, reader: Reader, job: JobRow) -> NotifiedJob:
        (values,) = job_values.values_of(reader, [job.key], (), None).values()
        metrics = {name: summary.last for name, summary in values.metrics.items() if summary.last is not None}
        base = self._backend.settings.public_url
        return NotifiedJob(
            project=job.project,
            job_id=job.job_id,
            owner=job.owner,
            state=job.state,
            labels=job.labels,
            created_at=job.created_at,
            started_at=job.started_at,
            ended_at=job.ended_at,
            error=job.error_message,
            metrics=dict(list(metrics.items())[: contents.MAX_METRICS]),
            url=f"{base}/projects/{job.project}/jobs/{job.job_id}" if base else "",
        )


def _asked_for(reader: Reader, job: JobRow) -> Sequence[Notification]:
    """The notifications that a job asks for; none of one that cannot be read, so that others go on."""
    try:
        return reader.job_input(job)[0].notifications
    except (TrainyardError, ValueError, KeyError, TypeError):
        logger.exception(
            "The job %s of %s cannot be read: it notifies only the channels of its project", job.job_id, job.project
        )
        return ()


def _add(
    writer: Writer, job: JobRow, event: str, receiver: Receiver, content: Mapping[str, Any], now: datetime
) -> None:
    store.add(writer, store.notification(job.project, job.job_id, event, receiver, content, now))


def _receivers(
    reader: Reader, project: str, own: Sequence[Notification], events: Sequence[JobEvent]
) -> Iterator[tuple[JobEvent, Receiver]]:
    """The destinations of a job's events, each with the event that it gets."""
    for notification in own:
        event = next((event for event in events if event in notification.events), None)
        receiver = _receiver(reader, project, notification.to) if event is not None else None
        if event is not None and receiver is not None:
            yield event, receiver
    for channel in store.channels(reader, frozenset({project})):
        event = next((event for event in events if event in channel.events), None)
        if event is not None:
            yield event, Receiver(channel.name, Transport(channel.transport), channel.address)


def _receiver(reader: Reader, project: str, to: str) -> Receiver | None:
    """The destination of a name or an address; None for a channel that was deleted."""
    if not is_channel_name(to):
        return Receiver("", transport_of(to), to)
    channel = store.channel(reader, project, to)
    return None if channel is None else Receiver(to, Transport(channel.transport), channel.address)
