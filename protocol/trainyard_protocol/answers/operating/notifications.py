"""Notification channels of a project (`/trainyard/v1/projects/P/channels`), and what was sent to them and for jobs."""

from datetime import datetime

from pydantic import Field

from trainyard_protocol.job.keys.notifications import JobEvent, Transport
from trainyard_protocol.message import Wire

MAX_CHANNELS = 50
"""Channels of one project."""


class ChannelRequest(Wire):
    """A channel to be stored. `address`: a mail address or a URL. `format`: of a URL, by default by its host. `on`:
    the events of all jobs of the project that it gets; none for a channel that jobs name."""

    address: str = Field(max_length=4096, repr=False)
    format: str = Field(default="", max_length=16)
    events: tuple[str, ...] = Field(default=(JobEvent.FAILURE, JobEvent.STALL), max_length=10)


class ChannelView(Wire):
    """A channel. Of a URL the address has the host alone: its path may be a secret. `pending`: notifications that wait
    to be delivered; `last_error`: of the newest attempt, "" after one that was delivered."""

    name: str
    transport: Transport
    address: str
    events: tuple[str, ...]
    created_by: str
    created_at: datetime
    pending: int = 0
    last_delivered_at: datetime | None = None
    last_error: str = ""


class ChannelsView(Wire):
    channels: tuple[ChannelView, ...]


class SigningKey(Wire):
    """The key of the signatures of a project's webhooks, as Standard Webhooks writes it: `whsec_BASE64`."""

    key: str = Field(repr=False)


class NotificationView(Wire):
    """A notification. `to`: the channel's name, or the job's own destination. `state`: pending, delivered, or failed
    after its last attempt."""

    id: str
    job_id: str
    event: str
    to: str
    state: str
    attempts: int
    created_at: datetime
    delivered_at: datetime | None = None
    next_attempt_at: datetime | None = None
    error: str = ""


class NotificationsView(Wire):
    notifications: tuple[NotificationView, ...]


class DeliveryTest(Wire):
    """The outcome of a test: "" in `error` if the receiver accepted it."""

    error: str = ""
