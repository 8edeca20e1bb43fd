"""Rules of notifications: where they may be sent, and which events there are. Pure."""

import math
import re
from enum import StrEnum
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator

from trainyard_protocol.errors import quoted
from trainyard_protocol.fields import Text, did_you_mean, validation_error
from trainyard_protocol.message import Message

MAX_NOTIFICATIONS = 10
"""Destinations of one job, and events of one destination."""

CHANNEL_NAME_RULE = "a lower-case letter, then lower-case letters, digits and '-', at most 40 characters"

_CHANNEL_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_MAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){0,8}", re.ASCII)
_BOUND = re.compile(r"(?P<metric>[^\s<>=][^<>=]{0,99}?)\s*(?P<operator>[<>]=?)\s*(?P<number>[-+.0-9eE]{1,40})")
_LONGEST_URL = 2000


class JobEvent(StrEnum):
    """An event of a job to notify of. The fourth is a bound of a metric, such as `loss > 5`."""

    END = "end"  # however the job ended
    FAILURE = "failure"
    STALL = "stall"


class Transport(StrEnum):
    """A way to send a notification."""

    MAIL = "mail"
    JSON = "json"  # an HTTP POST
    SLACK = "slack"  # an HTTP POST of what Slack's incoming webhooks take


class Bound(NamedTuple):
    """A metric and the bound beyond which it is told."""

    metric: str
    operator: str
    number: float

    def __str__(self) -> str:
        return f"{self.metric} {self.operator} {self.number:g}"


def is_channel_name(text: str) -> bool:
    return _CHANNEL_NAME.fullmatch(text) is not None


def transport_of(address: str) -> Transport:
    """The transport of a mail address or a URL. Raises PydanticCustomError."""
    if "://" not in address:
        if not _MAIL.fullmatch(address):
            raise validation_error(f"{quoted(address)} is not a mail address, and no http:// or https:// URL.")
        return Transport.MAIL
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or len(address) > _LONGEST_URL or not (address.isascii() and address.isprintable()):
        raise validation_error(
            f"{quoted(address)} is not an http:// or https:// URL of at most {_LONGEST_URL} characters."
        )
    if "@" in parts.netloc or parts.fragment or " " in address:
        raise validation_error(f"{quoted(address)} must have no user name, no # and no blank.")
    return Transport.SLACK if parts.hostname == "hooks.slack.com" else Transport.JSON


def checked_destination(value: str) -> str:
    """A channel's name, a mail address or a URL."""
    if is_channel_name(value):
        return value
    if "@" not in value and "://" not in value:
        raise validation_error(
            f"{quoted(value)} is not a channel of the project ({CHANNEL_NAME_RULE}), a mail address or a URL."
        )
    transport_of(value)
    return value


def bound_of(event: str) -> Bound | None:
    """The bound that an event is; None for one of JobEvent."""
    match = _BOUND.fullmatch(event)
    return None if match is None else Bound(match["metric"], match["operator"], float(match["number"]))


def checked_event(value: str) -> str:
    """An event as it is stored: a bound with single blanks."""
    if value in set(JobEvent):
        return value
    try:
        bound = bound_of(value.strip())
    except ValueError:
        bound = None
    if bound is None or not math.isfinite(bound.number):
        hint = did_you_mean(value, JobEvent) if value.isalpha() else ""
        raise validation_error(
            f"{quoted(value)} is not end, failure, stall, or a metric with a bound such as 'loss > 5'. {hint}".rstrip()
        )
    return str(bound)


def not_too_many_notifications(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) > MAX_NOTIFICATIONS:
        raise validation_error(f"may list at most {MAX_NOTIFICATIONS}; it lists {len(value)}.")
    return value


NotifiedEvent = Annotated[Text, AfterValidator(checked_event)]


class Notification(Message):
    """A destination that is notified of events of a job: a channel of the project, a mail address or a URL. `events`
    has values of JobEvent, and bounds of metrics such as `loss > 5`. Not of the v1 API."""

    to: Annotated[Text, AfterValidator(checked_destination)]
    events: Annotated[tuple[NotifiedEvent, ...], BeforeValidator(not_too_many_notifications)] = (
        JobEvent.END,
        JobEvent.STALL,
    )
