"""Comparisons of jobs, and the curves of several of them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from integration.api.api_support import ADMIN, VERA, Clock, ScriptedAgent, Server, server
from trainyard_protocol.errors import PermissionDenied
from trainyard_server.capabilities.experiments.comparisons import job_names
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.services.measurements.metrics import ANSWER_POINTS

COMPARE, CURVES = "/trainyard/v1/jobs:compare", "/trainyard/v1/metrics"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Eight jobs that have succeeded, two for each learning rate; a ninth waits."""
    with server(tmp_path_factory.mktemp("jobs"), Clock()) as api:
        _run_all(api)
        yield api


def _run_all(api: Server) -> None:
    agent = ScriptedAgent(api, cpus=1)
    agent.sync()
    for number in range(8):
        rate = ("0.3", "0.1", "0.03", "0.01")[number % 4]
        api.create(f"job_{number}", args=["--lr", rate, f"--seed={number}", "--epochs=5"])
        agent.begin()
        loss = abs(float(rate) - 0.1) + number / 1000
        agent.log(*(json.dumps({"step": step, "loss": loss + 1 / step, "rate": 9}) for step in range(1, 101)))
        agent.exit(code=0)
    api.use_cases.backend.progress.flush()
    api.create("job_8", args=["--lr", "1", "--augment"])


def named(*numbers: int) -> list[str]:
    return [f"p/job_{number}" for number in numbers]


def test_jobs_are_compared_and_judged(jobs: Server) -> None:
    view = jobs.get(COMPARE, job=named(*range(9)))
    assert [job["job_id"] for job in view["jobs"]] == [f"job_{number}" for number in range(9)]
    assert (view["metric"], view["goal"], view["best"]) == ("loss", "MINIMIZE", 1)
    rows = {(row["section"], row["name"]): row for row in view["differing"]}
    assert rows["parameters", "lr"]["values"][:3] == ["0.3", "0.1", "0.03"]
    assert rows["results", "loss, last"]["best"] == [1]
    assert rows["results", "loss, last"]["values"][8] is None
    assert view["axes"] == []
    judged = jobs.get(COMPARE, job=named(0, 1), metric="rate")
    assert (judged["metric"], judged["best"]) == ("rate", None)


def test_a_deleted_job_is_missing_and_others_are_compared(jobs: Server) -> None:
    jobs.create("gone")
    jobs.cancel("gone")
    jobs.delete_job("gone")
    view = jobs.get(COMPARE, job=[*named(0, 1), "p/gone", "p/never"])
    assert (view["missing"], view["best"]) == (["p/gone", "p/never"], 1)
    assert [job["job_id"] for job in jobs.get(CURVES, job=[*named(0), "p/gone"])["jobs"]] == ["job_0"]
    page = jobs.client.get("/compare", params={"job": [*named(0, 2), "p/gone"]}, headers=ADMIN)
    assert "p/gone does not exist" in page.text
    gone = jobs.refusal("GET", COMPARE, 404, params={"job": ["p/gone", "p/never"]})
    assert gone["message"] == "None of these jobs exists: p/gone, p/never."


def test_points_of_several_jobs_are_bounded_and_what_cannot_be_compared_is_refused(jobs: Server) -> None:
    whole = jobs.get(CURVES, job=named(0, 1))["jobs"]
    assert [len(series["steps"]) for job in whole for series in job["curves"]["metrics"]] == [100] * 4
    few = jobs.get(CURVES, job=named(0, 1), points=100)["jobs"]
    assert all(len(series["steps"]) <= 25 for job in few for series in job["curves"]["metrics"])
    losses = jobs.get(CURVES, job=named(0), name="loss")["jobs"]
    assert [series["name"] for series in losses[0]["curves"]["metrics"]] == ["loss"]
    table: list[tuple[str, dict[str, Any], str]] = [
        (COMPARE, {}, "names 2 to 50 jobs"),
        (COMPARE, {"job": named(0, 0)}, "names 2 to 50 jobs"),
        (COMPARE, {"job": [f"p/{number}" for number in range(51)]}, "these are 51"),
        (COMPARE, {"job": ["p/a", "p"]}, "'p' is not the name of a job"),
        (COMPARE, {"job": ["p/a", "p/b/c"]}, "'p/b/c' is not the name of a job"),
        (COMPARE, {"job": ["p/a", f"p/{'x' * 400}"]}, "is not the name of a job"),
        (COMPARE, {"job": named(0, 1), "metric": "f1"}, "They measured loss, rate."),
        (CURVES, {}, "names 1 to 50 jobs"),
        (CURVES, {"job": named(0), "points": 3}, "must be from"),
        (CURVES, {"job": named(0), "points": ANSWER_POINTS + 1}, "must be from"),
    ]
    for path, params, text in table:
        jobs.refusal("GET", path, 400, text, params=params)
    assert jobs.client.get(COMPARE, params={"job": named(0, 1)}, headers=VERA).status_code == 200
    assert jobs.client.get(COMPARE, params={"job": named(0, 1)}).status_code == 401
    someone = Caller("someone", {"p": Role.VIEWER})
    assert job_names(someone, ["p/a", "p/b"]) == [("p", "a"), ("p", "b")]
    with pytest.raises(PermissionDenied, match="no role in the project q"):
        job_names(someone, ["p/a", "q/b"])
