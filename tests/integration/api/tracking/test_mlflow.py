"""MLflow's tracking API: what a program logs by the token of its run, and what people read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from beds.databases import on_every_database
from integration.api.api_support import (
    ADMIN,
    ALICE,
    VERA,
    Clock,
    ScriptedAgent,
    Server,
    package_job,
    running_agent,
    server,
)
from trainyard_server.storage.db.tables import job_values

API = "/api/2.0/mlflow"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path, Clock()) as api:
        yield api


class Program:
    """The program of a job that runs, as MLflow's client."""

    def __init__(self, api: Server, job_id: str = "job", agent: ScriptedAgent | None = None) -> None:
        self.api = api
        self.agent = running_agent(api, job_id, agent=agent)
        order = next(run for run in self.agent.runs.values() if run.job_id == job_id)
        self.order = order
        self.run_id = order.tracking_run
        self.headers = {"Authorization": f"Bearer {order.run_token}"}

    def post(self, call: str, **body: Any) -> httpx.Response:
        return self.api.client.post(f"{API}/{call}", json=body, headers=self.headers)

    def get(self, name: str, **params: Any) -> httpx.Response:
        return self.api.client.get(f"{API}/{name}", params=params, headers=self.headers)

    def done(self, call: str, **body: Any) -> Any:
        answer = self.post(call, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metric(self, key: str, value: float | str, step: int = 0, **more: Any) -> None:
        self.done("runs/log-metric", run_id=self.run_id, key=key, value=value, step=step, timestamp=1, **more)


def curves(api: Server, job_id: str = "job") -> dict[str, list[tuple[int, Any]]]:
    series = api.get(f"/trainyard/v1/projects/p/jobs/{job_id}/metrics")["metrics"]
    return {one["name"]: list(zip(one["steps"], one["values"], strict=True)) for one in series}


@on_every_database
def test_what_a_program_logs_is_curves_values_and_parameters_of_its_job(api: Server) -> None:
    program = Program(api)
    own = program.get("experiments/get-by-name", experiment_name="whatever").json()["experiment"]
    assert own["name"] == "p"
    assert program.done("experiments/create", name="mine") == {"experiment_id": own["experiment_id"]}
    run = program.get("runs/get", run_id=program.run_id).json()["run"]["info"]
    assert (run["experiment_id"], run["status"], run["run_name"]) == (own["experiment_id"], "RUNNING", "job")
    program.done("runs/update", run_id=program.run_id, status="RUNNING")
    values: tuple[float | str, ...] = (0.5, 0.25, "NaN")
    for step, value in enumerate(values):
        program.metric("val/loss", value, step)
    metrics = [{"key": f"m{n}", "value": n, "step": 7, "timestamp": 1} for n in range(1000)]
    program.done("runs/log-batch", run_id=program.run_id, metrics=metrics, params=[{"key": "lr", "value": "0.1"}])
    program.done("runs/log-parameter", run_id=program.run_id, key="opt", value="x" * 900)
    assert curves(api)["val/loss"] == [(0, 0.5), (1, 0.25), (2, "NaN")]
    assert len(curves(api)) == 1001
    read = api.get(f"{API}/runs/get", run_id=program.run_id)["run"]["data"]
    assert read["metrics"][0].keys() == {"key", "value", "step", "timestamp"}
    assert [(one["value"], one["step"]) for one in read["metrics"] if one["key"] == "m3"] == [(3.0, 7)]
    assert {param["key"]: len(param["value"]) for param in read["params"]} == {"lr": 3, "opt": 500}
    history = api.get(f"{API}/metrics/get-history", run_id=program.run_id, metric_key="val/loss")["metrics"]
    assert [(point["step"], point["value"]) for point in history[:2]] == [(0, 0.5), (1, 0.25)]
    listed = api.get("/v1/projects/p/jobs", filter='metrics."val/loss".best<0.3 AND params.lr=0.1')["jobs"]
    assert [job["jobId"] for job in listed] == ["job"]


def test_a_metric_of_two_sources_is_one_curve_the_printed_one(api: Server) -> None:
    program = Program(api)
    program.metric("Loss", 9.0, 1)
    program.metric("auc", 0.5, 1)
    assert curves(api) == {"Loss": [(1, 9.0)], "auc": [(1, 0.5)]}
    program.agent.log(json.dumps({"step": 1, "loss": 3.0}))
    program.metric("Loss", 8.0, 2)
    assert curves(api) == {"loss": [(1, 3.0)], "auc": [(1, 0.5)]}


@on_every_database
def test_further_runs_are_in_their_job_below_their_names(api: Server) -> None:
    program = Program(api)
    first = program.done("runs/create", experiment_id="0", run_name="lightning")["run"]["info"]
    assert first["run_id"] == program.run_id  # a program that ignores MLFLOW_RUN_ID
    child = program.done("runs/create", experiment_id="0", run_name="fold")["run"]["info"]
    again = program.done("runs/create", experiment_id="0", tags=[{"key": "mlflow.runName", "value": "fold"}])
    assert (child["run_id"], again["run"]["info"]["run_name"]) == (f"{program.run_id}-1", "fold-2")
    program.done("runs/log-metric", run_id=child["run_id"], key="auc", value=0.75, step=1)
    program.done("runs/log-parameter", run_id=child["run_id"], key="c", value="1")
    ended = program.done("runs/update", run_id=child["run_id"], status="FINISHED")["run_info"]
    assert (ended["status"], "end_time" in ended) == ("FINISHED", True)
    assert curves(api) == {"fold/auc": [(1, 0.75)]}
    data = program.get("runs/get", run_id=child["run_id"]).json()["run"]["data"]
    assert [(one["key"], one["value"]) for one in data["metrics"]] == [("auc", 0.75)]
    assert [(one["key"], one["value"]) for one in data["params"]] == [("c", "1")]


@on_every_database
def test_a_program_logs_to_its_own_job_while_it_runs(api: Server) -> None:
    program = Program(api, agent=ScriptedAgent(api, cpus=1))
    other = Program(api, "other", ScriptedAgent(api, "second"))
    for run_id in (other.run_id, f"{program.run_id}-1", "job-999", "x"):
        answer = program.post("runs/log-metric", run_id=run_id, key="a", value=1)
        assert (answer.status_code, answer.json()["error_code"]) == (403, "PERMISSION_DENIED")
    for path in ("/v1/projects/p/jobs", "/trainyard/v1/projects/p/jobs/other"):
        assert api.client.get(path, headers=program.headers).status_code == 403
    assert api.client.post(f"{API}/runs/log-metric", json={"key": "a", "value": 1}, headers=ADMIN).status_code == 403
    program.metric("a", 1.0)
    program.agent.exit()
    api.tick()
    assert program.post("runs/log-metric", run_id=program.run_id, key="a", value=1).status_code == 401
    key = int(program.run_id.removeprefix("job-"))
    assert api.client.request("DELETE", "/trainyard/v1/projects/p/jobs/job", headers=ADMIN).status_code == 200
    with api.use_cases.backend.store.read() as reader:
        assert job_values.values_of(reader, [key], None, None)[key] == ({}, {})
    assert api.client.get(f"{API}/runs/get", params={"run_id": program.run_id}, headers=ADMIN).status_code == 404


def test_people_read_the_jobs_of_their_projects(api: Server) -> None:
    for number in range(3):
        body = {"jobId": f"j{number}", "trainingInput": package_job(args=["--lr", str(number)]), "labels": {"a": "b"}}
        assert api.client.post("/v1/projects/p/jobs", json=body, headers=ALICE).status_code == 200
    experiments = api.client.post(f"{API}/experiments/search", json={}, headers=VERA).json()["experiments"]
    search = {"experiment_ids": [experiments[0]["experiment_id"]], "max_results": 2, "order_by": ["x"]}
    page = api.client.post(f"{API}/runs/search", json=search, headers=VERA).json()
    rest = api.client.post(f"{API}/runs/search", json=search | {"page_token": page["next_page_token"]}, headers=VERA)
    runs = [*page["runs"], *rest.json()["runs"]]
    assert [run["info"]["run_name"] for run in runs] == ["j2", "j1", "j0"]
    assert runs[0]["data"]["params"] == [{"key": "lr", "value": "2"}]
    assert {"key": "a", "value": "b"} in runs[0]["data"]["tags"]
    assert (runs[0]["info"]["status"], rest.json().get("next_page_token")) == ("SCHEDULED", None)
    assert api.client.post(f"{API}/runs/search", json={"filter": "metrics.a<1"}, headers=VERA).status_code == 400


@pytest.mark.parametrize(
    ("name", "body", "status", "problem"),
    [
        ("runs/log-metric", {"key": "a"}, 400, "value"),
        ("runs/log-metric", {"key": "a\n", "value": 1}, 400, "printable characters"),
        ("runs/log-metric", {"key": "a" * 101, "value": 1}, 400, "at most 100 printable characters"),
        ("runs/log-metric", {"key": "a", "value": 1, "step": 1 << 64}, 400, "is at most"),
        ("runs/log-batch", {"metrics": [{"key": "a", "value": 1}] * 1001}, 400, "1000"),
        ("runs/update", {"status": "DANCING"}, 400, "is one of RUNNING"),
        ("registered-models/create", {"name": "m"}, 501, "registered-models/create is not implemented here"),
    ],
)
def test_what_cannot_be_logged_is_refused_as_mlflow_reads_it(
    api: Server, name: str, body: dict[str, Any], status: int, problem: str
) -> None:
    program = Program(api)
    answer = program.post(name, run_id=program.run_id, **body)
    assert (answer.status_code, problem in answer.json()["message"]) == (status, True), answer.text
    assert answer.json()["error_code"] in ("INVALID_PARAMETER_VALUE", "NOT_IMPLEMENTED")


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_call_by_a_wrong_method_names_the_right_one(api: Server, method: str) -> None:
    answer = api.client.request(method, f"{API}/runs/create", headers=VERA)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_artifacts_need_a_job_dir(api: Server) -> None:
    program = Program(api)
    answer = api.client.request(
        "PUT", "/api/2.0/mlflow-artifacts/artifacts/none/x", content=b"", headers=program.headers
    )
    assert (answer.status_code, "submit it with --job-dir" in answer.json()["message"]) == (400, True)
