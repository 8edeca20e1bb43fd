"""Curves of a job agree with its log, however they were read."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard_protocol.wire.logs import LogLine
from trainyard_server.domain.metrics.sources import MetricSource
from trainyard_server.services.measurements import curves
from trainyard_server.services.measurements.curves import JobCurves
from trainyard_server.storage.job_files.event_files import Scalar
from trainyard_server.storage.logs import job_log
from trainyard_server.storage.logs.store import SERVICE, LogStore, Stream

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
MASTER, WORKER, AGAIN = (Stream(1, "master-replica-0"), Stream(1, "worker-replica-0"), Stream(2, "master-replica-0"))

PRINTED: dict[str, dict[str, Any]] = {"step 3, loss = 0.5": {"step": 3, "loss": 0.5}}
LINES = st.one_of(
    st.builds(
        lambda step, loss, rest: json.dumps({"event": "progress", "step": step, "loss": loss} | rest),
        st.integers(0, 30),
        st.floats(),
        st.dictionaries(
            st.sampled_from(["accuracy", "rate", "epoch", "note"]), st.one_of(st.integers(0, 9), st.text())
        ),
    ),
    st.sampled_from([*PRINTED, '{"event": "progress"}', '{"event": "x", "step"', "{}"]),
)
CHUNKS = st.lists(
    st.tuples(
        st.sampled_from([SERVICE, MASTER, WORKER, AGAIN]),
        st.lists(st.tuples(LINES, st.sampled_from(["stdout", "stderr"]), st.booleans()), max_size=8),
        st.booleans(),
    ),
    max_size=12,
)


def line(text: str, stream: str = "stdout", partial: bool = False, at: float = 0) -> LogLine:
    time = (T0 + timedelta(seconds=at)).isoformat()
    return LogLine.parse({"time": time, "stream": stream, "text": text, "partial": partial})


def progress(step: int, **values: object) -> str:
    return json.dumps({"event": "progress", "step": step} | values)


def shown(job: JobCurves) -> dict[tuple[str, Stream], list[str]]:
    return {key: list(map(repr, curve.points())) for key, curve in job.curves.items()}


@settings(max_examples=40)
@given(CHUNKS)
def test_curves_are_those_of_a_naive_reading_of_the_log(
    chunks: list[tuple[Stream, list[tuple[str, str, bool]], bool]],
) -> None:
    expected: dict[tuple[str, Stream], dict[int, tuple[int, float, float]]] = {}
    with TemporaryDirectory() as directory:
        store = LogStore(Path(directory), durable=False)
        job, seconds = JobCurves("p", "j"), 0
        for stream, texts, catches_up in chunks:
            start = store.count("p", "j", stream)
            added = [line(text, where, partial, seconds + i) for i, (text, where, partial) in enumerate(texts)]
            store.append("p", "j", stream, start, added)
            seconds += len(texts)
            for one in added:
                try:
                    values = PRINTED.get(one.text) or json.loads(one.text)
                except ValueError:
                    continue
                if stream == SERVICE or one.partial or "step" not in values:
                    continue
                time = datetime.fromisoformat(one.time).timestamp()
                for name in ("loss", "accuracy", "rate", "note"):
                    if isinstance(values.get(name), int | float):
                        expected.setdefault((name, stream), {})[values["step"]] = (
                            values["step"],
                            float(values[name]),
                            time,
                        )
            if catches_up:
                job.catch_up(store)
        job.catch_up(store)
        fresh = JobCurves("p", "j")
        fresh.catch_up(LogStore(Path(directory)))
    assert shown(job) == {key: [repr(at[step]) for step in sorted(at)] for key, at in expected.items()}
    assert shown(fresh) == shown(job)
    assert job.points == sum(map(len, expected.values()))


def test_a_log_that_has_become_shorter_is_read_anew(tmp_path: Path) -> None:
    store, job = LogStore(tmp_path / "a"), JobCurves("p", "j")
    store.append("p", "j", MASTER, 0, [line(progress(step, loss=step)) for step in range(9)])
    job.catch_up(store)
    token = job.token
    other = LogStore(tmp_path / "b")
    other.append("p", "j", MASTER, 0, [line(progress(3, loss=7))])
    job.catch_up(other)
    assert job.token != token
    assert [one[:2] for one in job.curves["loss", MASTER].points()] == [(3, 7.0)]


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "POINTS", 500)
    monkeypatch.setattr(curves, "CURVES", 3)
    monkeypatch.setattr(job_log, "_READ_BYTES", 4000)
    store, job = LogStore(tmp_path), JobCurves("p", "j")
    texts = [line(progress(step, loss=float(step == 1234), **{f"m{step}": 1})) for step in range(3000)]
    store.append("p", "j", MASTER, 0, texts)
    job.catch_up(store)
    assert job.thinned
    assert job.left_out
    assert len(job.curves) == 3
    assert job.points == sum(map(len, job.curves.values())) < 600
    assert 1.0 in job.curves["loss", MASTER].points().values


def test_a_metric_has_the_points_of_its_best_source(tmp_path: Path) -> None:
    logs = LogStore(tmp_path)
    lines = ["{'loss': '0.69', 'epoch': '0.5'}", "{'loss': '0.68', 'epoch': '1'}", "step 7, rate = 3"]
    logs.append("p", "job", MASTER, 0, [line(text, at=at) for at, text in enumerate(lines)])
    job = JobCurves("p", "job")
    job.catch_up(logs)
    assert shown(job)["loss", MASTER][0].startswith("(500, 0.69")
    assert job.source("Loss") is MetricSource.GUESSED
    time = T0.timestamp()
    job.add_written([(1, Scalar("Loss", 4, 0.5, time)), (1, Scalar("rate", 4, 0.5, time))])
    assert [(name, curve.points().steps.tolist()) for (name, _), curve in job.curves.items()] == [
        ("rate", [7]),
        ("Loss", [4]),
    ]
    at_one_step = [Scalar("loss", 5, 2.0, time), Scalar("loss", 5, 1.0, time + 1), Scalar("loss", 5, 3.0, time)]
    job.add_logged([(1, point) for point in at_one_step])
    (points,) = [curve.points() for (name, _), curve in job.curves.items() if name == "loss"]
    assert (points.steps.tolist(), points.values.tolist()) == ([5], [1.0])
    assert job.source("loss") is MetricSource.LOGGED
