"""Thousands of lines that come together are read in part, and tell what all of them tell."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from trainyard_protocol.lines.progress_reader import ProgressReader
from trainyard_protocol.wire.logs import LogLine
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.logs.store import LogStore, Stream
from trainyard_server.storage.progress import ProgressTracker

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
COUNT = 1000


def lines(text_of: Callable[[int], str]) -> list[LogLine]:
    times = (NOON + timedelta(milliseconds=number) for number in range(COUNT))
    return [LogLine(time=at.isoformat(), stream="stdout", text=text_of(n)) for n, at in enumerate(times)]


def json_line(number: int) -> str:
    return f'{{"event": "progress", "step": {number}, "steps": 9000, "loss": {1 / (number + 1)}}}'


def with_checkpoints(number: int) -> str:
    return json_line(number) if number % 100 != 50 else f'{{"event": "checkpoint", "step": {number}}}'


def epochs_without_their_size(number: int) -> str:
    """The steps of an epoch are known by the last line of the one before."""
    return f"epoch: {number // 70 + 1} step: {number % 70} loss: {1 / (number + 1):.3f}"


def with_evaluations(number: int) -> str:
    return f"step {number}: loss {number:.2f}" if number % 250 else f"step {number}: val_loss {number:.2f}"


def values(tmp_path: Path, sent: Sequence[LogLine], chunk: int) -> dict[str, Any]:
    directory = tmp_path / str(chunk)
    directory.mkdir()
    store, logs = Store.at(directory, durable=False), LogStore(directory / "logs", durable=False)
    tracker = ProgressTracker(store, logs)
    for start in range(0, COUNT, chunk):
        tracker.add("run", "master-replica-0", start, chunk, sent[start : start + chunk])
    row, _ = tracker.final_values("p", "job", Stream(1, "master-replica-0"), "run", COUNT)
    found: dict[str, Any] = row
    store.close()
    digest = found["metrics"]
    for metric in digest["metrics"]:
        del metric["points"], metric["count"], metric["every"]
    return found | {"metrics": digest | {"taken": 0, "ranges": {}}}


@pytest.mark.parametrize(
    ("text_of", "most"),
    [(json_line, 70), (with_checkpoints, 450), (epochs_without_their_size, 600), (with_evaluations, 250)],
)
def test_lines_that_come_together_are_read_in_part_and_mean_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text_of: Callable[[int], str], most: int
) -> None:
    sent = lines(text_of)
    each_by_itself = values(tmp_path, sent, 50)
    reads: list[str] = []
    read = ProgressReader.read

    def counted(self: ProgressReader, text: str, overwritten: bool = False) -> Any:
        reads.append(text)
        return read(self, text, overwritten)

    monkeypatch.setattr(ProgressReader, "read", counted)
    together = values(tmp_path, sent, COUNT)
    assert together == each_by_itself
    assert len(reads) <= most
