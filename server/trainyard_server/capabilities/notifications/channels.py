"""Notification channels of projects: created, deleted, tested; and what was sent."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from pydantic_core import PydanticCustomError

from trainyard_protocol.answers.operating.notifications import (
    MAX_CHANNELS,
    ChannelRequest,
    ChannelsView,
    ChannelView,
    DeliveryTest,
    NotificationsView,
    NotificationView,
    SigningKey,
)
from trainyard_protocol.errors import InvalidArgument, NotFound, ResourceExhausted, Violation, quoted
from trainyard_protocol.fields import did_you_mean
from trainyard_protocol.job.keys.notifications import (
    CHANNEL_NAME_RULE,
    JobEvent,
    Transport,
    is_channel_name,
    transport_of,
)
from trainyard_server.capabilities.notifications import content as contents
from trainyard_server.capabilities.notifications import delivery, store
from trainyard_server.capabilities.notifications.sender import Sender
from trainyard_server.capabilities.notifications.store import ChannelStatus, Receiver
from trainyard_server.capabilities.notifications.tables import ChannelRow, NotificationRow
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller, Visible
from trainyard_server.services.jobs.known_jobs import check_project

MAX_SHOWN = 100
"""Notifications in one answer."""


class Channels:
    def __init__(self, backend: Backend, sender: Sender, key: bytes) -> None:
        self._backend = backend
        self._sender = sender
        self._key = key

    def list(self, project: str) -> ChannelsView:
        return ChannelsView(channels=tuple(channel for _, channel in self.visible(frozenset({project}))))

    def visible(self, visible: Visible) -> Sequence[tuple[str, ChannelView]]:
        """The channels of visible projects, each with its project."""
        with self._backend.store.read() as reader:
            statuses = store.statuses(reader, visible)
            channels = store.channels(reader, visible)
        return [(row.project, _view(row, statuses.get((row.project, row.name)))) for row in channels]

    def save(self, caller: Caller, project: str, name: str, request: ChannelRequest) -> ChannelView:
        """Store a channel, in place of an earlier one of its name. Raises InvalidArgument, ResourceExhausted."""
        check_project(project)
        row = ChannelRow(
            project=project,
            name=name,
            transport=_transport(name, request),
            address=request.address,
            events=list(dict.fromkeys(request.events)),
            created_by=caller.name,
            created_at=self._backend.clock(),
        )
        with self._backend.store.write(caller.name) as writer:
            is_new = store.channel(writer, project, name) is None
            own = frozenset({project})
            if is_new and len(store.channels(writer, own)) >= MAX_CHANNELS:
                raise ResourceExhausted(f"The project {project} has {MAX_CHANNELS} channels, the limit: delete some.")
            store.save_channel(writer, row)
            return _view(row, store.statuses(writer, own).get((project, name)))

    def delete(self, caller: Caller, project: str, name: str) -> None:
        """Delete a channel with what waits to be delivered to it. Raises NotFound."""
        with self._backend.store.write(caller.name) as writer:
            if store.channel(writer, project, name) is None:
                raise _missing(project, name)
            store.remove_channel(writer, project, name)

    async def test(self, caller: Caller, project: str, name: str) -> DeliveryTest:
        """Send a notification to a channel now, once; operators see the exact cause. Raises NotFound,
        ResourceExhausted."""
        failure = await self._sender.test(self._test_notification(caller, project, name))
        if failure is None:
            return DeliveryTest()
        return DeliveryTest(error=(caller.is_operator and failure.cause) or failure.reason)

    def notifications(self, project: str, job_id: str) -> NotificationsView:
        """The newest notifications of a project, or of one of its jobs."""
        sent = self.newest(frozenset({project}), job_id)
        return NotificationsView(notifications=tuple(notification for _, notification in sent))

    def newest(self, visible: Visible, job_id: str = "") -> Sequence[tuple[str, NotificationView]]:
        """The newest notifications of visible projects, each with its project."""
        with self._backend.store.read() as reader:
            newest = store.newest(reader, visible, MAX_SHOWN, job_id)
            return [(row.project, _notification(row)) for row in newest]

    def signing_key(self, project: str) -> SigningKey:
        return SigningKey(key=delivery.key_text(delivery.signing_key(self._key, project)))

    def _test_notification(self, caller: Caller, project: str, name: str) -> NotificationRow:
        now = self._backend.clock()
        with self._backend.store.read() as reader:
            row = store.channel(reader, project, name)
        if row is None:
            raise _missing(project, name)
        url = self._backend.settings.public_url
        content = contents.of_test(project, name, caller.name, now, url)
        return store.notification(
            project, "", "test", Receiver(name, Transport(row.transport), row.address), content, now
        )


def _transport(name: str, request: ChannelRequest) -> Transport:
    """The transport of a channel. Raises InvalidArgument with every violation."""
    wrong = []
    if not is_channel_name(name):
        wrong.append(Violation("name", f"{quoted(name)} is not a channel's name: {CHANNEL_NAME_RULE}."))
    for event in request.events:
        if event not in set(JobEvent):
            hint = did_you_mean(event, JobEvent)
            wrong.append(
                Violation("events", f"has {quoted(event)}; a channel gets {', '.join(JobEvent)}. {hint}".rstrip())
            )
    transport = Transport.JSON
    try:
        transport = transport_of(request.address)
    except PydanticCustomError as error:
        wrong.append(Violation("address", error.message()))
    posted = (Transport.JSON, Transport.SLACK)
    if request.format and (request.format not in posted or transport is Transport.MAIL):
        wrong.append(Violation("format", f"of a URL is {' or '.join(posted)}; this is {quoted(request.format)}."))
    if wrong:
        raise InvalidArgument(wrong)
    return Transport(request.format or transport)


def _missing(project: str, name: str) -> NotFound:
    return NotFound(
        f"The project {project} has no channel {quoted(name)}. `trainyard channels list` shows which it has."
    )


def _view(row: ChannelRow, status: ChannelStatus | None) -> ChannelView:
    pending, delivered_at, error = status or (0, None, "")
    return ChannelView(
        name=row.name,
        transport=Transport(row.transport),
        address=_shown_address(row.address),
        events=tuple(row.events),
        created_by=row.created_by,
        created_at=row.created_at,
        pending=pending,
        last_delivered_at=delivered_at,
        last_error=error,
    )


def _shown_address(address: str) -> str:
    """A mail address, or the scheme and the host of a URL: whoever has its path can send there."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}/..." if parts.scheme else address


def _notification(row: NotificationRow) -> NotificationView:
    waits = row.state == store.PENDING
    return NotificationView(
        id=row.id,
        job_id=row.job_id,
        event=row.event,
        to=row.channel or _shown_address(row.address),
        state=row.state,
        attempts=row.attempts,
        created_at=row.created_at,
        delivered_at=row.delivered_at,
        next_attempt_at=row.next_at if waits else None,
        error=row.error,
    )
