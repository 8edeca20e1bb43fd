"""Bounds of what agents report: numbers, times, texts and counts that the server stores and shows. Pure.

A value beyond its bounds is moved to the nearest one, since an agent with a wrong clock or a strange device must go on
with its runs. Only a report that is no agent's is refused: too many of anything, or no id.
"""

import math
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeVar

from pydantic import BaseModel

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.sync import LogChunk, SyncRequest

_M = TypeVar("_M", bound=BaseModel)

MAX_ELEMENTS = 10_000
"""Of one list or mapping: CPUs, runs, replicas, samples, lines."""

MAX_TEXT = 2000
_LENGTHS = {"address": 255, "stacks": 256 * 2**10, "replica_environment": 128 * 2**10}
MAX_CODE = 255
MAX_LINES = 2**31 - 1
MAX_NUMBER = 2**62
MAX_AGENT_ID = 128

MAX_SHA256 = 64

_BEFORE, _AHEAD = timedelta(days=3650), timedelta(days=1)


def bounded_sync(request: SyncRequest, now: datetime) -> SyncRequest:
    """Raises InvalidArgument for a report that is no agent's."""
    agent_id = request.agent.agent_id
    if not agent_id or len(agent_id) > MAX_AGENT_ID or not agent_id.isprintable():
        text = f"must have 1 to {MAX_AGENT_ID} printable characters."
        raise InvalidArgument(Violation("agent.agent_id", text))
    return bounded(request, now)


def checked_chunk(chunk: LogChunk) -> LogChunk:
    """Raises InvalidArgument for more lines than an agent sends."""
    _check_count("lines", len(chunk.lines))
    if chunk.start < 0:
        raise InvalidArgument(Violation("start", f"must be 0 or more; this is {chunk.start}."))
    if chunk.end is None:
        return chunk
    count = min(max(chunk.end.count, 0), MAX_LINES)
    end = {"count": count, "sha256": chunk.end.sha256.replace("\0", "")[:MAX_SHA256]}
    return chunk.model_copy(update={"end": chunk.end.model_copy(update=end)})


def bounded(message: _M, now: datetime) -> _M:
    """The message with every value within its bounds; times within ten years before `now` and a day after it."""
    return message.model_copy(
        update={
            name: _bounded(name, getattr(message, name), now)
            for name in type(message).model_fields
            if name in message.model_fields_set
        }
    )


def _bounded(name: str, value: Any, now: datetime) -> Any:
    match value:
        case BaseModel():
            return bounded(value, now)
        case None | bool() | Enum():
            return value
        case str():
            return value.replace("\0", "")[: _LENGTHS.get(name, MAX_TEXT)]
        case int() if name == "code":  # a number that is no exit code is none of a success
            return value if 0 <= value <= MAX_CODE else MAX_CODE
        case int():
            return min(max(value, 0), MAX_NUMBER)
        case float():
            return min(max(value, 0.0), float(MAX_NUMBER)) if math.isfinite(value) else 0.0
        case datetime():
            return bounded_time(value, now)
        case tuple():
            _check_count(name, len(value))
            return tuple(_bounded(name, item, now) for item in value)
        case dict():
            _check_count(name, len(value))
            return {_bounded("", key, now): _bounded(name, item, now) for key, item in value.items()}
        case _:
            return value


def bounded_time(time: datetime, now: datetime) -> datetime:
    """A time in UTC, near `now`. A time without a zone is UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return min(max(aware, now - _BEFORE), now + _AHEAD).astimezone(UTC)


def _check_count(name: str, count: int) -> None:
    if count > MAX_ELEMENTS:
        text = f"may have {MAX_ELEMENTS} elements; this has {count}."
        raise InvalidArgument(Violation(name, text))
