"""Parameters and metrics of jobs: filters, orders, and what is recorded of them."""

import json
from collections.abc import Mapping

import pytest

from beds.databases import on_every_database
from integration.api.api_support import BOB, ScriptedAgent, Server
from trainyard_protocol.errors import InvalidArgument
from trainyard_server.services.views.job_search import JobSearchRequest

JOBS = "/v1/projects/p/jobs"


def run(api: Server, agent: ScriptedAgent, job_id: str, args: list[str], *lines: Mapping[str, object]) -> None:
    """A job from its submission to its end."""
    api.create(job_id, args=args)
    agent.sync()
    agent.begin(1)
    agent.log(*(json.dumps(line) for line in lines))
    agent.exit()
    agent.turn()


@pytest.fixture
def trained(api: Server) -> Server:
    """Four jobs: `a` to `c` with learning rates, `text` without."""
    agent = ScriptedAgent(api)
    for name, rate, accuracies in (("a", "0.1", (0.7, 0.6)), ("b", "1e-2", (0.8, 0.95)), ("c", "0.5", (0.3,))):
        lines = [{"step": step, "accuracy": value, "loss": 1 - value} for step, value in enumerate(accuracies, 1)]
        run(api, agent, name, ["--learning-rate", rate, "--opt", "adam_w"], *lines)
    run(api, agent, "text", ["--learning-rate", "warm"], {"step": 3, "loss": float("nan")})
    return api


def listed(api: Server, text: str) -> list[str]:
    return [job["jobId"] for job in api.get(JOBS, filter=text).get("jobs", [])]


@on_every_database
def test_jobs_are_found_by_their_parameters_and_metrics(trained: Server) -> None:
    expected = {
        "params.learning_rate<0.2": ["b", "a"],
        "params.learning-rate<=0.1 AND metrics.accuracy.best>0.9": ["b"],
        "parameters.learning_rate=0.10": ["a"],
        "params.learning_rate=warm": ["text"],
        "params.learning_rate!=0.1": ["text", "c", "b"],
        "params.opt:adam*": ["c", "b", "a"],
        "params.opt=adam%": [],
        "params.opt:*": ["c", "b", "a"],
        "-params.opt:*": ["text"],
        "metrics.accuracy<0.65": ["c", "a"],
        "metrics.accuracy.best=0.7": ["a"],
        "metrics.accuracy.max>=0.7 AND metrics.accuracy.min<0.7": ["a"],
        "metrics.loss.step:2": ["b", "a"],
        "metrics.loss:*": ["c", "b", "a"],
        "metrics.none>-1": [],
        'params."learning_rate">0.4 OR metrics.accuracy>0.9': ["c", "b"],
    }
    assert {text: listed(trained, text) for text in expected} == expected


@on_every_database
def test_jobs_are_sorted_by_their_parameters_and_metrics(trained: Server) -> None:
    def names(order: str, text: str = "") -> list[str]:
        listing = trained.use_cases.job_search.find(None, JobSearchRequest(order=order, filter=text))
        assert listing.total == len(listing.jobs)
        return [job.job_id for job in listing.jobs]

    assert names("params.learning_rate") == ["b", "a", "c"]  # the text is no number
    assert names("-metrics.accuracy.best") == ["b", "a", "c"]
    assert names("metrics.accuracy", "params.learning_rate>0.05") == ["c", "a"]
    assert names("-created", "metrics.accuracy.best>0.6") == ["b", "a"]


def test_a_term_that_a_value_does_not_take_is_refused(api: Server) -> None:
    for text, problem in {
        "metrics.accuracy>high": "is not a number",
        "params.lr<fast": "is not a number, which < compares",
        "params.lr~a": "takes : = != < <= > and >=",
        "origin.branch<1": "compares numbers and times",
        "origin.author=x": "cannot be filtered by",
        "metrics.=1": "cannot be filtered by",
    }.items():
        assert problem in api.refusal("GET", JOBS, 400, params={"filter": text})["message"], text


@on_every_database
def test_trials_are_found_by_their_study(api: Server) -> None:
    parameter = {"parameterName": "lr", "type": "DISCRETE", "discreteValues": [0.1, 0.2]}
    spec = {"goal": "MAXIMIZE", "maxTrials": 2, "maxParallelTrials": 2, "params": [parameter]}
    api.create("study", hyperparameters=spec)
    api.create("other")
    api.tick()
    assert sorted(listed(api, "study=study")) == ["study.1", "study.2"]
    assert listed(api, "study=study AND params.lr<0.15") in (["study.1"], ["study.2"])
    assert listed(api, "study=other") == []
    grouped = api.use_cases.job_groups.grouped(None, JobSearchRequest(), "study", ())
    assert [(group.value, group.jobs, group.term) for group in grouped.groups] == [("study", 2, 'study="study"')]
    with pytest.raises(InvalidArgument, match="is not a group"):
        api.use_cases.job_groups.grouped(None, JobSearchRequest(), "metrics.loss", ())


def test_views_and_notes_are_bounded_and_of_their_projects(api: Server) -> None:
    api.create()
    views = "/trainyard/v1/projects/p/views"
    saved = api.done("PUT", f"{views}/best%20runs", json={"query": "?sort=name&page=3"})
    assert saved["query"] == "sort=name"
    assert [view["name"] for view in api.get("/trainyard/v1/views")["views"]] == ["best runs"]
    assert api.status("DELETE", f"{views}/none") == 404
    assert api.get(f"{views}/best%20runs") == saved
    for query in ("q" * 5000, f"q={'ü' * 1000}"):  # 6 characters for each ü
        api.refusal("PUT", f"{views}/x", 400, "has at most 4000 characters", json={"query": query})
    note = "/trainyard/v1/projects/p/jobs/job/note"
    assert api.status("PUT", note, json={"note": "n" * 4001}) == 400
    assert api.status("PUT", note, BOB, json={"note": " kept "}) == 403
    assert api.done("PUT", note, json={"note": " kept "}) == {"note": "kept"}
    assert (api.detail()["note"], listed(api, "note:kept")) == ("kept", ["job"])
