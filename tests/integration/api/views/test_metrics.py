"""Metrics of programs in the API."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, Clock, ScriptedAgent, Server, running_agent, server
from trainyard_protocol.states import Reason
from trainyard_server.domain.metrics.summary import CurveSummary
from trainyard_server.use_cases import UseCases

MASTER = "master-replica-0"


def progress(step: int, **values: object) -> str:
    return json.dumps({"event": "progress", "step": step} | values)


@pytest.fixture
def agent(api: Server) -> ScriptedAgent:
    return running_agent(api)


def metrics(api: Server, **params: Any) -> dict[str, Any]:
    series: dict[str, Any] = api.get("/trainyard/v1/projects/p/jobs/job/metrics", **params)
    return series


def refused(api: Server, **params: Any) -> list[str]:
    error = api.refusal("GET", "/trainyard/v1/projects/p/jobs/job/metrics", 400, params=params)
    return [one["field"] for one in error["details"][0]["fieldViolations"]]


def digest(api: Server, run: int = -1) -> dict[str, Any]:
    series: dict[str, Any] = api.detail()["runs"][run]["replicas"][0]["metrics"]
    return series


def test_curves_of_a_job_grow_with_its_log(api: Server, agent: ScriptedAgent) -> None:
    assert metrics(api)["metrics"] == []
    agent.log("Loading...", progress(1, steps=9, epoch=1, epochs=3, loss=3.5, rate=10))
    first = metrics(api)
    assert first["names"] == ["loss", "rate"]
    assert (first["main"], first["tasks"], first["start"]) == ("loss", [MASTER], "2026-11-20T12:00:00Z")
    assert (first["step"], first["steps"], first["epoch"], first["epochs"]) == (1, 9, 1, 3)
    loss = {"name": "loss", "task": MASTER, "run": 1, "steps": [1], "values": [3.5], "times": [0.0], "total": 1}
    assert first["metrics"][0] == loss
    agent.log(progress(2, loss=float("nan")), progress(3, loss=float("-inf")))
    assert metrics(api)["metrics"][0]["values"] == [3.5, "NaN", "-Infinity"]


def test_after_a_version_only_what_has_changed_comes(api: Server, agent: ScriptedAgent) -> None:
    agent.log(progress(1, loss=1, rate=1))
    version = metrics(api)["version"]
    assert metrics(api, after=version)["metrics"] == []
    agent.log(progress(2, loss=2))
    changed = metrics(api, after=version)
    assert [(one["name"], one["steps"]) for one in changed["metrics"]] == [("loss", [1, 2])]
    assert changed["names"] == ["loss", "rate"]
    for unknown in ("", "x", f"x{version}", f"{version}x"):
        assert len(metrics(api, after=unknown)["metrics"]) == 2


def test_a_part_of_some_curves_with_few_points(api: Server, agent: ScriptedAgent) -> None:
    agent.log(*(progress(step, loss=float(step == 333), rate=1, other=2) for step in range(500)))
    series = metrics(api, name=["loss", "rate"], from_step=300, to_step=399, points=10, task=MASTER)["metrics"]
    assert [(one["name"], one["total"]) for one in series] == [("loss", 100), ("rate", 100)]
    assert len(series[0]["steps"]) <= 10
    assert (series[0]["steps"][0], series[0]["steps"][-1]) == (300, 399)
    assert max(series[0]["values"]) == 1.0
    assert metrics(api, task="worker-replica-0")["metrics"] == []
    assert metrics(api, from_step=500)["metrics"] == []
    assert refused(api, points=9, task="boss-0", from_step=3, to_step=2) == ["task", "points", "to_step"]
    assert refused(api, points=10_001) == ["points"]
    assert refused(api, from_step="some") == ["from_step"]


def test_a_resumed_run_continues_the_curve(api: Server, agent: ScriptedAgent) -> None:
    first = agent.run
    agent.log(*(progress(step, loss=step) for step in (10, 20, 30, 40)))
    agent.exit(code=139, reason=Reason.KILLED_BY_SIGNAL)
    agent.turn(60)
    agent.turn(60)
    (second,) = (run for run in agent.runs.values() if run.run_id != first.run_id)
    agent.start(second)
    agent.log(*(progress(step, loss=100 + step) for step in (25, 35)), run=second)
    series = metrics(api)["metrics"]
    assert [(one["run"], one["steps"]) for one in series] == [(1, [10, 20, 40]), (2, [25, 35])]
    assert series[1]["values"] == [125, 135]

    answer = api.client.get("/trainyard/v1/projects/p/jobs/job/metrics.csv", headers=ADMIN)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert 'filename="job-metrics.csv"' in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["run"], row["step"]) for row in rows] == [
        *(("1", step) for step in ("10", "20", "30", "40")),
        *(("2", step) for step in ("25", "35")),
    ]
    first_row = {"run": "1", "task": MASTER, "metric": "loss", "step": "10", "value": "10.0"}
    assert rows[0] == first_row | {"time": "2026-11-20T12:00:00+00:00"}


def test_a_name_is_no_formula_in_a_spreadsheet(api: Server, agent: ScriptedAgent) -> None:
    agent.log(progress(1, **{'=HYPERLINK("x")': 1, "a,b": float("inf")}))
    answer = api.client.get("/trainyard/v1/projects/p/jobs/job/metrics.csv", headers=ADMIN)
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["metric"], row["value"]) for row in rows] == [('\'=HYPERLINK("x")', "1.0"), ("a,b", "Infinity")]


def test_the_digest_is_written_as_lines_come_and_exact_at_the_end(api: Server, agent: ScriptedAgent) -> None:
    steps = api.use_cases.backend.progress
    assert digest(api) is None
    for first in (1, 51):
        agent.log(*(progress(step, loss=1 / step, epoch=1, epochs=2) for step in range(first, first + 50)))
    steps.flush()
    series = digest(api)
    assert (series["main"], series["epoch"], series["epochs"]) == ("loss", 1, 2)
    assert (series["metrics"][0]["step"], series["metrics"][0]["value"]) == (100, 0.01)
    assert len(series["metrics"][0]["points"]) == 25

    steps._replicas.clear()  # as after a restart of the server
    agent.log(progress(101, loss=float("nan")))
    steps.flush()
    series = digest(api)
    assert (series["metrics"][0]["step"], series["metrics"][0]["value"]) == (101, "NaN")
    assert len(series["metrics"][0]["points"]) == 26

    steps._replicas.clear()
    agent.log(progress(102, loss=5))
    agent.exit()
    whole = stored(api.use_cases)
    assert whole["taken"] == 102
    assert (whole["metrics"][0]["count"], whole["metrics"][0]["value"]) == (102, 5.0)


def stored(use_cases: UseCases) -> dict[str, Any]:
    with use_cases.backend.store.read() as reader:
        job = reader.job("p", "job")
        assert job is not None
        (series,) = reader.digests([run.run_id for run in reader.runs(job.key)]).values()
    assert (CurveSummary.of(series).json() or {}) | {"reader": series["reader"]} == series
    return dict(series)


def test_event_files_in_the_job_dir_are_curves_unless_their_metrics_are_printed(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    job_dir = tmp_path / "job"
    (job_dir / "logs").mkdir(parents=True)
    with server(tmp_path / "server", Clock(), job_dir_roots=(str(tmp_path),), one_user=True) as api:
        agent = running_agent(api, "job", jobDir=str(job_dir))
        begin = api.clock.now.timestamp()
        with (job_dir / "logs" / "events.out.tfevents.1.host").open("wb") as file:
            # The first is of an earlier job.
            for step, time in ((1, begin - 3600), (2, begin), (3, begin + 1)):
                event = Event(wall_time=time, step=step)
                for tag in ("Loss", "val/accuracy"):
                    event.summary.value.add(tag=tag, simple_value=step / 4)
                RecordWriter(file).write(event.SerializeToString())
        first = metrics(api)
        found = {one["name"]: (one["task"], one["steps"], one["values"]) for one in first["metrics"]}
        assert found == dict.fromkeys(("Loss", "val/accuracy"), (MASTER, [2, 3], [0.5, 0.75]))
        agent.log("step 9 loss 0.25")
        assert sorted(metrics(api)["names"]) == ["loss", "val/accuracy"]
        agent.exit()


@on_every_database
def test_every_surface_has_the_same_values_once_a_job_has_ended(api: Server) -> None:
    agent = running_agent(api, "job")
    agent.log(
        "{'loss': '0.7', 'epoch': '1'}",
        "Test accuracy: 93%",
        *(progress(at, val_loss=abs(at - 5)) for at in (2, 9, 5, 7)),
    )
    api.use_cases.backend.progress.flush()
    agent.exit()
    api.tick()
    api.use_cases.written_metrics.step(0.0)
    expected = {"loss": (0.7, 0.7), "val_loss": (4, 0), "test_accuracy": (0.93, 0.93)}
    detail = api.detail()
    assert {one["name"]: (one["last"], one["best"]) for one in detail["metrics"]} == expected
    results = metrics(api)["results"]
    assert {one["name"]: (one["last"], one["best"]) for one in results} == expected
    assert {one["name"]: one["value"] for one in digest(api)["metrics"]} == {
        name: last for name, (last, _) in expected.items()
    }
    columns = [f"metrics.{name}{number}" for name in expected for number in ("", ".best")]
    _, row = api.client.get("/trainyard/v1/jobs.csv", params={"column": columns}, headers=ADMIN).text.splitlines()
    assert [float(value) for value in row.split(",")[3:]] == [value for values in expected.values() for value in values]
    api.use_cases.written_metrics.step(100.0)  # nothing is left to do
    assert api.detail()["metrics"] == detail["metrics"]
