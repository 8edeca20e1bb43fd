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
from trainyard_protocol.wire.logs import LogChunk, LogGap
from trainyard_protocol.wire.observations import MAX_REQUIREMENTS
from trainyard_protocol.wire.sync import ClockOffset, RunReport, SyncRequest, TrialMeasurement

_M = TypeVar("_M", bound=BaseModel)

MAX_ELEMENTS = 10_000
"""Most elements of one list or mapping: CPUs, runs, replicas, samples, lines."""

MAX_TEXT = 2000
MAX_WAITS = 300
_LENGTHS = {
    "address": 255,
    "kind": 32,
    "stacks": 16 * 2**10,
    "replica_environment": 128 * 2**10,
    "requirements": MAX_REQUIREMENTS + 1,  # one more: a longer text then ends with a whole line
}
MAX_CODE = 255
MAX_LINES = 2**31 - 1
MAX_NUMBER = 2**62
MAX_AGENT_ID = 128
MAX_AGENT_BYTES = 256 * 2**10
"""Most bytes of the JSON of an agent's description, which is read with each list of agents."""

MAX_CHUNK_TEXT = 2 * 2**20
"""Characters of a chunk's lines: an agent sends half a megabyte, and a last line of at most one."""

MAX_SHA256 = 64
MAX_TIME = 40
"""Characters of a time of a gap."""

_BEFORE, _AHEAD = timedelta(days=3650), timedelta(days=1)


def bounded_sync(request: SyncRequest, now: datetime) -> SyncRequest:
    """Raises InvalidArgument for a report that is no agent's."""
    agent_id = request.agent.agent_id
    if not agent_id or len(agent_id) > MAX_AGENT_ID or not agent_id.isprintable():
        text = f"must have 1 to {MAX_AGENT_ID} printable characters."
        raise InvalidArgument(Violation("agent.agent_id", text))
    report = bounded(request, now)
    size = len(report.agent.model_dump_json())
    if size > MAX_AGENT_BYTES:
        text = f"may take {MAX_AGENT_BYTES} bytes of JSON; this takes {size}. Give its replicas a smaller environment."
        raise InvalidArgument(Violation("agent", text))
    return report


def related(report: RunReport, clock: ClockOffset | None) -> RunReport:
    """The report of a part, with times of this server's clock: those of the others are related to it too. Without the
    clock it may be wrong by any amount, and is left as it is."""
    if clock is None:
        return report
    by = timedelta(seconds=clock.offset_s)
    replicas = []
    for replica in report.replicas:
        started = replica.started_at and replica.started_at + by
        ended = replica.exit
        if ended is not None:
            ended = ended.model_copy(update={"finished_at": ended.finished_at + by, "error_s": clock.error_s})
        replicas.append(replica.model_copy(update={"started_at": started, "exit": ended}))
    return report.model_copy(update={"replicas": tuple(replicas)})


def checked_chunk(chunk: LogChunk) -> LogChunk:
    """The chunk within its limits. Raises InvalidArgument for more than an agent sends at once."""
    _check_count("lines", chunk.count)
    size = sum(sum(map(len, block.texts)) for block in chunk.blocks)
    if size > MAX_CHUNK_TEXT:
        text = f"may have {MAX_CHUNK_TEXT} characters in all; these have {size}."
        raise InvalidArgument(Violation("lines", text))
    if chunk.start < 0:
        raise InvalidArgument(Violation("start", f"must be 0 or more; this is {chunk.start}."))
    if chunk.gap is not None:
        gap = LogGap(after=_time_text(chunk.gap.after), before=_time_text(chunk.gap.before))
        chunk = chunk.model_copy(update={"gap": gap})
    if chunk.end is None:
        return chunk
    count = min(max(chunk.end.count, 0), MAX_LINES)
    digests = {name: getattr(chunk.end, name).replace("\0", "")[:MAX_SHA256] for name in ("sha256", "chain")}
    missing = chunk.end.missing and min(max(chunk.end.missing, 0), MAX_LINES)
    end = {"count": count, "missing": missing, **digests}
    return chunk.model_copy(update={"end": chunk.end.model_copy(update=end)})


def _time_text(text: str) -> str:
    return "".join(letter for letter in text[:MAX_TIME] if letter.isprintable())


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
        case ClockOffset():
            longest = _AHEAD.total_seconds()
            offset, error = (number if math.isfinite(number) else longest for number in (value.offset_s, value.error_s))
            return ClockOffset(offset_s=min(max(offset, -longest), longest), error_s=min(max(error, 0.0), longest))
        case TrialMeasurement():  # a metric may be below 0
            return value.model_copy(update={"step": min(max(value.step, 0), MAX_NUMBER)})
        case BaseModel():
            return bounded(value, now)
        case None | bool() | Enum():
            return value
        case str() if name == "waits":  # an engine's words, which are shown in one line
            printable = "".join(letter if letter.isprintable() else " " for letter in value[:MAX_TEXT])
            return " ".join(printable.split())[:MAX_WAITS]
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
