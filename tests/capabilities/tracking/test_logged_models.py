"""MLflow's logged models: made by programs, found and read by people."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beds.databases import on_every_database
from capabilities.tracking.test_mlflow import API, Program
from integration.api.api_support import ADMIN, VERA, Clock, ScriptedAgent, Server, server
from trainyard_server.capabilities.tracking.models import store as model_store

MODELS = f"{API}/logged-models"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path, Clock(), job_dir_roots=(str(tmp_path / "jobs"),), one_user=True) as api:
        yield api


def created(program: Program, **body: Any) -> dict[str, Any]:
    model: dict[str, Any] = program.done("logged-models", experiment_id="0", **body)["model"]
    return model


def call(program: Program, method: str, path: str, **body: Any) -> Any:
    return program.api.done(method, f"{MODELS}/{path}", program.headers, **({"json": body} if body else {}))


def test_models_are_made_finalized_tagged_measured_and_deleted(api: Server, tmp_path: Path) -> None:
    program = Program(api, jobDir=str(tmp_path / "jobs" / "mine"))
    params = [{"key": "depth", "value": "3"}]
    model = created(program, name="net", model_type="keras", source_run_id=program.run_id, params=params)
    info = model["info"]
    model_id = info["model_id"]
    assert (info["name"], info["model_type"], info["status"]) == ("net", "keras", "LOGGED_MODEL_PENDING")
    assert info["source_run_id"] == program.run_id
    assert info["artifact_uri"] == f"{tmp_path}/jobs/mine/mlflow/models/{model_id}/artifacts"
    call(program, "POST", f"{model_id}/params", params=[{"key": "width", "value": "8"}])
    call(program, "PATCH", f"{model_id}/tags", tags=[{"key": "a/b", "value": "c"}, {"key": "d", "value": "e"}])
    call(program, "DELETE", f"{model_id}/tags/a/b")
    ready = call(program, "PATCH", model_id, model_id=model_id, status="LOGGED_MODEL_READY")["model"]
    assert ready["info"]["status"] == "LOGGED_MODEL_READY"
    metric = {"key": "auc", "value": 0.5, "step": 1, "timestamp": 9, "model_id": model_id}
    on_data = {**metric, "dataset_name": "test", "dataset_digest": "d", "value": 0.75}
    program.own("log-batch", metrics=[metric, on_data])
    program.own("log-metric", **{**metric, "step": 2, "value": "NaN"})
    read = api.client.get(f"{MODELS}/{model_id}", headers=VERA).json()["model"]
    assert read["data"]["params"] == [{"key": "depth", "value": "3"}, {"key": "width", "value": "8"}]
    assert read["info"]["tags"] == [{"key": "d", "value": "e"}]
    assert read["info"]["artifact_uri"] == f"mlflow-artifacts:/{program.run_id}/models/{model_id}/artifacts"
    of_run = {"model_id": model_id, "run_id": program.run_id}
    assert read["data"]["metrics"] == [
        {**metric, **of_run},
        {**on_data, **of_run},
        {"key": "auc", "value": "NaN", "timestamp": 9, "step": 2, **of_run},
    ]
    program.own("log-batch", metrics=[metric])  # again: it is kept once
    assert api.get(f"{MODELS}/{model_id}")["model"]["data"]["metrics"] == read["data"]["metrics"]
    history = program.history("auc")["metrics"]
    assert [(point["step"], point["value"]) for point in history] == [(1, 0.5), (1, 0.75), (2, "NaN")]
    directory = tmp_path / "jobs" / "mine" / "mlflow" / "models" / model_id / "artifacts"
    (directory / "data").mkdir(parents=True)
    (directory / "MLmodel").write_text("x")
    (directory / "data" / "weights").write_text("x")
    listed = api.get(f"{MODELS}/{model_id}/artifacts/directories")
    assert [(file["path"], file["is_dir"]) for file in listed["files"]] == [("MLmodel", False), ("data", True)]
    below = api.get(f"{MODELS}/{model_id}/artifacts/directories", artifact_directory_path="data")
    assert [file["path"] for file in below["files"]] == ["data/weights"]
    call(program, "DELETE", model_id)
    assert api.client.get(f"{MODELS}/{model_id}", headers=VERA).status_code == 404
    assert api.get(f"{MODELS}/{model_id}", allow_deleted="true")["model"]["info"]["name"] == "net"


@on_every_database
def test_models_are_searched_and_sorted(api: Server) -> None:
    program = Program(api)
    experiment = program.read()["info"]["experiment_id"]
    for name, auc, depth in (("a", 0.5, "3"), ("b", 0.75, "4"), ("c", None, "3")):
        api.clock.advance(1)
        params = [{"key": "depth", "value": depth}]
        model_id = created(program, name=name, params=params, tags=[{"key": "k", "value": name}])["info"]["model_id"]
        if auc is not None:
            on = {"model_id": model_id, "dataset_name": f"data-{name}", "dataset_digest": "d"}
            program.own("log-metric", key="auc", value=auc, step=1, **on)
    key = program.run_id.removeprefix("job-")
    call(program, "PATCH", f"m-{key}-2", status="LOGGED_MODEL_READY")

    def names(text: str = "", **more: Any) -> list[str]:
        body = {"experiment_ids": [experiment], "filter": text, **more}
        return [model["info"]["name"] for model in api.done("POST", f"{MODELS}/search", VERA, json=body)["models"]]

    cases = {
        "": ["c", "b", "a"],
        "name = 'a'": ["a"],
        "params.depth = '3'": ["c", "a"],
        "tags.k ILIKE 'B'": ["b"],
        "metrics.auc > 0.6": ["b"],
        "status = 'READY'": ["b"],
        "status = 'LOGGED_MODEL_READY'": ["b"],
        f"model_id IN ('m-{key}-1', 'm-{key}-3')": ["c", "a"],
        f"source_run_id = '{program.run_id}' AND creation_timestamp > 0": ["c", "b", "a"],
    }
    assert {text: names(text) for text, wanted in cases.items() if names(text) != wanted} == {}
    assert names(order_by=[{"field_name": "metrics.auc"}]) == ["a", "b", "c"]
    assert names(order_by=[{"field_name": "metrics.auc", "ascending": False}]) == ["b", "a", "c"]
    assert names(order_by=[{"field_name": "name", "ascending": False}]) == ["c", "b", "a"]
    assert names(datasets=[{"dataset_name": "data-a"}]) == ["a"]
    assert names("metrics.auc > 0", datasets=[{"dataset_name": "data-b", "dataset_digest": "d"}]) == ["b"]
    assert names(experiment_ids=[]) == []
    body = {"experiment_ids": [experiment], "max_results": 2}
    page = api.done("POST", f"{MODELS}/search", VERA, json=body)
    rest = api.done("POST", f"{MODELS}/search", VERA, json=body | {"page_token": page["next_page_token"]})
    assert ([model["info"]["name"] for model in rest["models"]], rest.get("next_page_token")) == (["a"], None)


def test_models_that_there_is_no_room_for_end_no_program(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_store, "MAX_MODELS", 1)
    program = Program(api)
    kept = created(program, name="kept")["info"]["model_id"]
    model_id = created(program, name="more")["info"]["model_id"]
    ready = call(program, "PATCH", model_id, status="LOGGED_MODEL_READY")["model"]["info"]
    assert (ready["model_id"], ready["status"]) == (model_id, "LOGGED_MODEL_READY")
    call(program, "PATCH", f"{model_id}/tags", tags=[{"key": "a", "value": "b"}])
    call(program, "PATCH", f"{kept}/tags", tags=[{"key": "a", "value": "x" * 100_000}])
    assert program.get(f"logged-models/{kept}").json()["model"]["info"]["tags"] == []
    (line,) = program.lines
    assert "at most 1,000 models" in line


def test_models_are_changed_by_their_job_alone(api: Server) -> None:
    program = Program(api, agent=ScriptedAgent(api, cpus=1))
    other = Program(api, "other", ScriptedAgent(api, "second"))
    model_id = created(program)["info"]["model_id"]
    for headers in (other.headers, ADMIN):
        for method, path in (("PATCH", model_id), ("DELETE", model_id)):
            body = {"status": "LOGGED_MODEL_READY"}
            answer = api.client.request(method, f"{MODELS}/{path}", json=body, headers=headers)
            assert (answer.status_code, answer.json()["error_code"]) == (403, "PERMISSION_DENIED")
    assert other.post("logged-models", source_run_id=program.run_id).status_code == 403
    assert api.status("PATCH", f"{MODELS}/{model_id}", program.headers, json={"status": "X"}) == 400
    for missing in ("m-99-1", "m-1-99", "x", "m-1"):
        assert api.status("GET", f"{MODELS}/{missing}") == 404
