"""Bounds of agents' reports: whatever a report says, its values can be stored and shown."""

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from trainyard_protocol.answers.usage import UsageBatch
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.wire.logs import LogChunk, LogEnd, LogLine
from trainyard_protocol.wire.sync import SyncRequest
from trainyard_server.domain import reports

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
REPLICA = {
    "task": "master-replica-0",
    "state": "EXITED",
    "address": "127.0.0.1:2222",
    "started_at": "2026-11-20T11:00:00Z",
    "exit": {"code": 1, "reason": "PROGRAM_ERROR", "message": "m", "finished_at": "2026-11-20T11:00:00Z"},
    "stall": {"step": 3, "since": "2026-11-20T11:00:00Z", "limit_s": 1.0, "for_s": 2.0, "longest_s": 1.0},
    "stacks": "s",
}
AGENT = {
    "agent_id": "id",
    "name": "laptop",
    "version": "1",
    "runtime": "process",
    "capacity_mode": "strict",
    "runs_images": False,
    "capacity": {"cpus": [0, 1], "memory_bytes": 1, "gpus": [{"id": "g", "type": "t", "memory_bytes": 1}]},
    "replica_environment": {"A": "b"},
    "runtimes": [{"name": "process", "about": "a", "problem": "p"}],
}
RUN = {"run_id": "r", "replicas": [REPLICA], "activity": "a", "runtime": "process", "runtime_reason": "r"}
SYNC = {"agent": AGENT, "runs": [RUN], "wait_s": 1.0, "seen": "s"}
SAMPLE = {"run_id": "r", "task": "t", "time": "2026-11-20T11:00:00Z", "cpu": 1.0, "memory_bytes": 1}
HOSTILE = (
    '"0001-01-01T00:00:00+14:00"',
    '"0001-01-01T00:00:00"',
    '"9999-12-31T23:59:59-14:00"',
    "-1e12",
    "-1",
    "9223372036854775808",
    "9" * 400,
    "1e308",
    "NaN",
    "Infinity",
    "-Infinity",
    '"\\u0000\\u0000"',
    '"' + "x" * 300_000 + '"',
    "[]",
    "{}",
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each scalar in a document."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))
    else:
        yield path


def with_value(document: Any, path: tuple[Any, ...], text: str) -> str:
    """The document's JSON with another JSON text at a place."""
    copy = json.loads(json.dumps(document))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = "<here>"
    return json.dumps(copy).replace('"<here>"', text)


def out_of_bounds(value: Any) -> Iterator[str]:
    match value:
        case BaseModel():
            for name in type(value).model_fields:
                yield from (f"{name}: {one}" for one in out_of_bounds(getattr(value, name)))
        case bool() | None:
            return
        case str() if "\0" in value or len(value) > 256 * 2**10:
            yield repr(value[:20])
        case int() if not 0 <= value < 2**63:
            yield repr(value)
        case float() if not math.isfinite(value) or not 0 <= value <= 2**62:
            yield repr(value)
        case datetime():
            if value.tzinfo is None or abs(value - NOW) > timedelta(days=3651):
                yield repr(value)
        case tuple() | list():
            for item in value:
                yield from out_of_bounds(item)
        case dict():
            for key, item in value.items():
                yield from (*out_of_bounds(key), *out_of_bounds(item))


@pytest.mark.parametrize(("kind", "document"), [(SyncRequest, SYNC), (UsageBatch, {"samples": [SAMPLE]})])
def test_report_with_any_value_anywhere_is_refused_or_bounded(kind: type[BaseModel], document: Any) -> None:
    taken = 0
    for path in places(document):
        for text in HOSTILE:
            try:
                message = kind.model_validate_json(with_value(document, path, text))
            except ValidationError:
                continue
            taken += 1
            wrong = list(out_of_bounds(reports.bounded(message, NOW)))
            assert not wrong, (path, text[:40], wrong)
    assert taken > 10


def test_words_of_an_engine_become_one_short_line() -> None:
    waiting = REPLICA | {"waits": "0/8 nodes\r\n\x1b[31m are\u202e  available" + "x" * 5000}
    request = SyncRequest.model_validate(SYNC | {"runs": [RUN | {"replicas": [waiting]}]})
    (replica,) = reports.bounded_sync(request, NOW).runs[0].replicas
    assert replica.waits.startswith("0/8 nodes [31m are available")
    assert len(replica.waits) == reports.MAX_WAITS


@pytest.mark.parametrize("agent_id", ["", "x" * 129, "a\nb", "\u202e"])
def test_report_of_no_agent_is_refused(agent_id: str) -> None:
    with pytest.raises(InvalidArgument, match="1 to 128 printable characters"):
        reports.bounded_sync(SyncRequest.model_validate(SYNC | {"agent": AGENT | {"agent_id": agent_id}}), NOW)


def test_report_with_too_many_of_anything_is_refused() -> None:
    many = SyncRequest.model_validate(SYNC | {"runs": [RUN] * 10_001})
    with pytest.raises(InvalidArgument, match="may have 10000 elements; this has 10001"):
        reports.bounded_sync(many, NOW)
    line = LogLine(time="", stream="stdout", text="")
    with pytest.raises(InvalidArgument, match="may have 10000 elements"):
        reports.checked_chunk(LogChunk.of(0, [line] * 10_001))
    long = line._replace(text="x" * 2**20)
    with pytest.raises(InvalidArgument, match="may have 2097152 characters in all; these have 3145728"):
        reports.checked_chunk(LogChunk.of(0, [long] * 3))
    environment = {f"V{n}": "x" * 1000 for n in range(300)}
    large = SyncRequest.model_validate(SYNC | {"agent": AGENT | {"replica_environment": environment}})
    with pytest.raises(InvalidArgument, match="may take 262144 bytes of JSON"):
        reports.bounded_sync(large, NOW)
    end = LogEnd(count=2**80, sha256="\0" + "x" * 500)
    assert reports.checked_chunk(LogChunk(start=0, end=end)).end == LogEnd(count=2**31 - 1, sha256="x" * 64)
