"""MLflow's tracking API: what a program logs by the token of its run, and what people read."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from beds.databases import on_every_database
from integration.api.api_support import ALICE, VERA, Clock, ScriptedAgent, Server, running_agent, server
from trainyard_server.capabilities.tracking import points, store
from trainyard_server.capabilities.tracking.store import ValueKind
from trainyard_server.storage.db.tables import job_values

API = "/api/2.0/mlflow"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"


class Program:
    """The program of a job that runs, as MLflow's client."""

    def __init__(
        self, api: Server, job_id: str = "job", agent: ScriptedAgent | None = None, **training_input: Any
    ) -> None:
        self.api = api
        self.agent = running_agent(api, job_id, agent=agent, **training_input)
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

    @property
    def lines(self) -> list[str]:
        """The lines that the service has written into the job's log about MLflow."""
        return [message for message in self.api.events(self.order.job_id) if message.startswith("MLflow: ")]

    def read(self, run_id: str = "") -> dict[str, Any]:
        """A run as the program reads it."""
        run: dict[str, Any] = self.get("runs/get", run_id=run_id or self.run_id).json()["run"]
        return run

    def own(self, call: str, **body: Any) -> Any:
        """A call about the program's own run."""
        return self.done(f"runs/{call}", **{"run_id": self.run_id} | body)

    def metric(self, key: str, value: float | str, step: int = 0, **more: Any) -> None:
        self.own("log-metric", key=key, value=value, step=step, timestamp=1, **more)

    def create(self, name: str, **body: Any) -> str:
        """The id of a further run."""
        return str(self.done("runs/create", run_name=name, **body)["run"]["info"]["run_id"])

    def history(self, key: str, **query: Any) -> dict[str, Any]:
        page: dict[str, Any] = self.get("metrics/get-history", run_id=self.run_id, metric_key=key, **query).json()
        return page


def texts(values: list[dict[str, str]]) -> dict[str, str]:
    return {value["key"]: value["value"] for value in values}


def files(api: Server, path: str) -> list[str]:
    return [file["path"] for file in api.done("GET", ARTIFACTS, VERA, params={"path": path})["files"]]


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
    program.own("update", status="RUNNING")
    values: tuple[float | str, ...] = (0.5, 0.25, "NaN")
    for step, value in enumerate(values):
        program.metric("val/loss", value, step)
    metrics = [{"key": f"m{n}", "value": n, "step": 7, "timestamp": 1} for n in range(999)]
    program.own("log-batch", metrics=metrics, params=[{"key": "lr", "value": "0.1"}])
    program.own("log-parameter", key="opt", value="x" * 900)
    assert curves(api)["val/loss"] == [(0, 0.5), (1, 0.25), (2, "NaN")]
    assert len(curves(api)) == 1000
    read = api.get(f"{API}/runs/get", run_id=program.run_id)["run"]["data"]
    assert read["metrics"][0].keys() == {"key", "value", "step", "timestamp"}
    assert [(one["value"], one["step"]) for one in read["metrics"] if one["key"] == "m3"] == [(3.0, 7)]
    assert [(one["value"], one["timestamp"]) for one in read["metrics"] if one["key"] == "val/loss"] == [("NaN", 1)]
    assert {param["key"]: len(param["value"]) for param in read["params"]} == {"lr": 3, "opt": 900}
    key = int(program.run_id.removeprefix("job-"))
    with api.use_cases.backend.store.read() as reader:
        assert len(job_values.values_of(reader, [key], None, None)[key].parameters["opt"]) == 500
    history = api.get(f"{API}/metrics/get-history", run_id=program.run_id, metric_key="val/loss")["metrics"]
    assert [(point["step"], point["value"]) for point in history[:2]] == [(0, 0.5), (1, 0.25)]
    listed = api.get("/v1/projects/p/jobs", filter='metrics."val/loss".best<0.3 AND params.lr=0.1')["jobs"]
    assert [job["jobId"] for job in listed] == ["job"]


def test_history_of_a_printed_metric_is_its_curve(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(api)
    program.agent.log(*(json.dumps({"step": step, "loss": 1 / step}) for step in (1, 2, 4)))
    api.use_cases.backend.progress.flush()
    monkeypatch.setattr(points, "MAX_HISTORY", 2)
    first = program.history("loss")
    rest = program.history("loss", page_token=first["next_page_token"])
    found = [(point["step"], point["value"]) for page in (first, rest) for point in page["metrics"]]
    assert (found, rest.get("next_page_token")) == ([(1, 1.0), (2, 0.5), (4, 0.25)], None)
    assert program.history("none") == {"metrics": []}


def test_further_runs_are_in_their_job_below_their_names(api: Server) -> None:
    program = Program(api)
    first = program.done("runs/create", experiment_id="0", run_name="lightning")["run"]["info"]
    assert first["run_id"] == program.run_id  # a program that ignores MLFLOW_RUN_ID
    child = program.done("runs/create", experiment_id="0", run_name="fold")["run"]["info"]
    again = program.done("runs/create", experiment_id="0", tags=[{"key": "mlflow.runName", "value": "fold"}])
    assert (child["run_id"], again["run"]["info"]["run_name"]) == (f"{program.run_id}-1", "fold")
    program.done("runs/log-metric", run_id=f"{program.run_id}-2", key="other", value=1, step=1)
    program.done("runs/log-metric", run_id=child["run_id"], key="auc", value=0.75, step=1)
    program.done("runs/log-parameter", run_id=child["run_id"], key="c", value="1")
    ended = program.done("runs/update", run_id=child["run_id"], status="FINISHED")["run_info"]
    assert (ended["status"], "end_time" in ended) == ("FINISHED", True)
    assert curves(api) == {"fold/auc": [(1, 0.75)], "fold-2/other": [(1, 1.0)]}
    assert program.read()["data"]["metrics"] == program.read()["data"]["params"] == []
    data = program.get("runs/get", run_id=child["run_id"]).json()["run"]["data"]
    assert [(one["key"], one["value"]) for one in data["metrics"]] == [("auc", 0.75)]
    assert [(one["key"], one["value"]) for one in data["params"]] == [("c", "1")]


def test_a_program_logs_to_its_own_job_while_it_runs(api: Server) -> None:
    program = Program(api, agent=ScriptedAgent(api, cpus=1))
    other = Program(api, "other", ScriptedAgent(api, "second"))
    for run_id in (other.run_id, f"{program.run_id}-1", "job-999", "x"):
        answer = program.post("runs/log-metric", run_id=run_id, key="a", value=1)
        assert (answer.status_code, answer.json()["error_code"]) == (403, "PERMISSION_DENIED")
    for path in ("/v1/projects/p/jobs", "/trainyard/v1/projects/p/jobs/other"):
        assert api.status("GET", path, program.headers) == 403
    assert api.status("POST", f"{API}/runs/log-metric", json={"key": "a", "value": 1}) == 403
    program.metric("a", 1.0)
    program.own("set-tag", key="a", value="b")
    program.done("logged-models", source_run_id=program.run_id)
    program.agent.exit()
    api.tick()
    assert program.post("runs/log-metric", run_id=program.run_id, key="a", value=1).status_code == 401
    key = int(program.run_id.removeprefix("job-"))
    api.delete_job()
    with api.use_cases.backend.store.read() as reader:
        assert job_values.values_of(reader, [key], None, None)[key] == ({}, {})
    assert api.status("GET", f"{API}/runs/get", params={"run_id": program.run_id}) == 404


def test_what_cannot_be_logged_is_refused_as_mlflow_reads_it(api: Server) -> None:
    program = Program(api)
    table: list[tuple[str, dict[str, Any], int, str]] = [
        ("runs/log-metric", {"key": "a"}, 400, "value"),
        ("runs/log-metric", {"key": "a", "value": 1, "step": "x"}, 400, "step"),
        ("runs/delete", {}, 400, "MLflow does not delete it"),
        ("runs/search", {"filter": "metrics.a < 'x'"}, 400, "compares 'a' with a number"),
        ("runs/search", {"run_view_type": "SOME"}, 400, "is one of ACTIVE_ONLY"),
        ("logged-models/search", {"order_by": [{"field_name": "x"}]}, 400, "sorts by metrics.NAME"),
        ("runs/log-metric", {"key": "a", "value": 1, "step": 1 << 64}, 400, "is at most"),
        ("runs/log-batch", {"metrics": [{"key": "a", "value": 1}] * 1001}, 400, "1000"),
        ("runs/update", {"status": "DANCING"}, 400, "is one of RUNNING"),
        ("registered-models/create", {"name": "m"}, 501, "registered-models/create is not implemented here"),
    ]
    for name, body, status, problem in table:
        answer = program.post(name, run_id=program.run_id, **body)
        assert (answer.status_code, problem in answer.json()["message"]) == (status, True), answer.text
        assert answer.json()["error_code"] in ("INVALID_PARAMETER_VALUE", "NOT_IMPLEMENTED")
    for method in ("GET", "OPTIONS"):
        answer = api.client.request(method, f"{API}/runs/create", headers=VERA)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@on_every_database
def test_tags_names_and_inputs_are_kept(api: Server) -> None:
    program = Program(api)
    program.done(
        "runs/create", run_name="mine", tags=[{"key": "mlflow.user", "value": "me"}, {"key": "a", "value": "b"}]
    )
    program.own("set-tag", key="big", value="x" * 8000)
    program.own("log-batch", tags=[{"key": "a", "value": "c"}, {"key": "gone", "value": ""}])
    program.own("delete-tag", key="gone")
    assert program.post("runs/delete-tag", run_id=program.run_id, key="gone").status_code == 404
    run = program.read()
    tags = texts(run["data"]["tags"])
    assert (run["info"]["run_name"], len(tags.pop("big"))) == ("mine", 8000)
    assert tags == {"mlflow.user": "me", "mlflow.runName": "mine", "a": "c"}
    program.own("update", run_name="renamed")
    assert program.read()["info"]["run_name"] == "renamed"
    dataset = {"name": "train", "digest": "d1", "source_type": "local", "source": "{}", "schema": "s", "profile": "p"}
    given = {"dataset": dataset, "tags": [{"key": "mlflow.data.context", "value": "training"}]}
    program.own("log-inputs", datasets=[given], models=[{"model_id": "m-1-1"}])
    program.own("log-inputs", datasets=[given])
    program.own("outputs", models=[{"model_id": "m-1-2", "step": 3}])
    run = program.read()
    assert run["inputs"] == {"dataset_inputs": [given], "model_inputs": [{"model_id": "m-1-1"}]}
    assert run["outputs"] == {"model_outputs": [{"model_id": "m-1-2", "step": 3}]}
    program.own("log-model", model_json=json.dumps({"artifact_path": "m"}))
    assert json.loads(texts(program.read()["data"]["tags"])["mlflow.log-model.history"]) == [{"artifact_path": "m"}]
    assert program.lines == []


def test_parameter_has_one_value_in_a_run_of_its_job(api: Server) -> None:
    program = Program(api)
    program.own("log-parameter", key="lr", value="0.1")
    program.own("log-parameter", key="lr", value="0.1")
    refused = program.post("runs/log-batch", run_id=program.run_id, params=[{"key": "lr", "value": "0.2"}])
    assert (refused.status_code, "cannot be changed to '0.2'" in refused.json()["message"]) == (400, True)
    assert texts(program.read()["data"]["params"]) == {"lr": "0.1"}
    with api.use_cases.backend.store.write() as writer:  # as a run of before its restart has logged it
        row = store.value(writer, int(program.run_id[4:]), 0, ValueKind.PARAM, "lr")
        assert row is not None
        row.run = 0
    program.own("log-parameter", key="lr", value="0.3")
    assert texts(program.read()["data"]["params"]) == {"lr": "0.3"}
    config = [{"key": "lr", "value": "0.4"}]
    program.own("log-batch", params=config, change_params=True)  # as W&B's shim
    assert texts(program.read()["data"]["params"]) == {"lr": "0.4"}


def test_last_value_of_a_metric_is_that_of_the_greatest_step_time_and_value(api: Server) -> None:
    program = Program(api)
    points = [(1.0, 9, 5), (3.0, 5, 9), (2.0, 9, 4), (7.0, 9, 5)]
    metrics = [{"key": "a", "value": value, "step": step, "timestamp": time} for value, step, time in points]
    program.own("log-batch", metrics=metrics)
    program.own("log-batch", metrics=[metrics[1]])
    assert program.read()["data"]["metrics"] == [{"key": "a", "value": 7.0, "step": 9, "timestamp": 5}]


def test_what_there_is_no_room_for_ends_no_program(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(api)
    metrics = [{"key": f"m{n}", "value": n} for n in range(1000)]
    program.own("log-batch", metrics=metrics)
    program.own("log-batch", metrics=[{"key": "m0", "value": 5}, {"key": "new", "value": 1}])
    program.metric("new2", 1.0)
    for key in ("a\n", "a" * 101):
        program.own("log-metric", key=key, value=1)
    program.own("log-parameter", key="long", value="x" * 7000)
    program.own("set-tag", key="long", value="x" * 9000)
    program.own("set-tag", key="x" * 300, value="x")
    for batch in range(11):
        tags = [{"key": f"t{batch}-{n}", "value": "v"} for n in range(100)]
        params = [{"key": f"p{batch}-{n}", "value": "v"} for n in range(100)]
        program.own("log-batch", tags=tags, params=params)
    data = program.read()["data"]
    assert (len(data["metrics"]), len(data["params"])) == (1000, 1000)
    assert len(texts(data["params"])["long"]) == 6000
    monkeypatch.setattr(store, "MAX_RUNS", 1)
    assert [program.create("n") for _ in range(3)] == [f"{program.run_id}-1", program.run_id, program.run_id]
    kinds = ["1,000 metrics", "100 printable", "cut at 6,000", "1,000 tags", "by at most 1,000 parameters"]
    kinds += ["further runs"]
    assert [sum(kind in line for line in program.lines) for kind in kinds] == [1] * len(kinds)
    assert len(program.lines) == len(kinds)


def test_points_are_not_kept_on_a_full_disk_and_last_values_are(tmp_path: Path) -> None:
    with server(tmp_path, Clock(), disk_reserve=1 << 60) as api:
        with api.use_cases.backend.store.read():
            object.__setattr__(api.use_cases.backend.settings, "disk_reserve", 0)
            program = Program(api)
            object.__setattr__(api.use_cases.backend.settings, "disk_reserve", 1 << 60)
        program.metric("a", 1.0, 1)
        program.metric("a", 0.5, 2)
        assert [(value["value"], value["step"]) for value in program.read()["data"]["metrics"]] == [(0.5, 2)]
        assert program.history("a") == {"metrics": []}
        assert [line for line in program.lines if "disk is almost full" in line] == program.lines
        program.agent.exit()
        api.tick()
        api.use_cases.written_metrics.step(0.0)
        assert [(value["last"], value["step"]) for value in api.detail()["metrics"]] == [(0.5, 2)]


def test_calls_of_what_is_not_kept_are_answered_and_noted_once(api: Server) -> None:
    traces, assessment = "traces, assessments", {"assessment": {"assessment_name": "a"}}
    table: list[tuple[str, str, Any, int, Any, str]] = [
        ("POST", "2.0/mlflow/experiments/set-experiment-tag", {"key": "a"}, 200, {}, "tags and names of experiments"),
        ("POST", "3.0/mlflow/traces", {}, 501, None, traces),
        ("POST", "3.0/mlflow/traces/search", {}, 200, {"traces": []}, traces),
        ("GET", "3.0/mlflow/traces/tr-1", None, 404, None, ""),
        ("POST", "3.0/mlflow/traces/tr-1/assessments", assessment, 200, None, traces),
        ("PATCH", "2.0/mlflow/traces/tr-1/tags", {}, 200, {}, traces),
        ("POST", "2.0/mlflow/registered-models/create", {"name": "m"}, 501, None, "no model registry"),
        ("POST", "3.0/mlflow/scorers/register", {}, 501, None, "not implemented here"),
        ("GET", "3.0/mlflow/server-info", None, 501, None, ""),
    ]
    noted = set[str]()
    program = Program(api)
    for method, path, body, status, answer, line in table:
        for _ in range(2):
            got = api.client.request(method, f"/api/{path}", json=body, headers=program.headers)
            assert (got.status_code, answer in (None, got.json())) == (status, True), got.text
        noted |= {line} - {""}
        assert [sum(text in entry for entry in program.lines) for text in noted] == [1] * len(noted), path
        assert len(program.lines) == len(noted), path
        refused = api.client.request(method, f"/api/{path}", json=body, headers=VERA)
        assert (refused.status_code, refused.json()["error_code"]) == (501, "NOT_IMPLEMENTED")


def test_history_is_read_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "MAX_SCANNED", 4000)
    with server(tmp_path, Clock()) as api:
        program = Program(api)
        for batch in range(10):
            names = ("a", "b") if batch != 3 else ("b",)
            metrics = [
                {"key": name, "value": float(step), "step": step}
                for step in range(batch * 500, batch * 500 + 500)
                for name in names
            ]
            program.own("log-batch", metrics=metrics)
        steps, token, pages = list[int](), "", 0
        while pages == 0 or token:
            page = program.history("a", max_results=1300, page_token=token)
            steps += [point["step"] for point in page["metrics"]]
            token, pages = page.get("next_page_token", ""), pages + 1
        assert steps == [step for step in range(5000) if step // 500 != 3]
        assert pages > 3
        assert program.history("x")["metrics"] == []
        wrong = program.get("metrics/get-history", run_id=program.run_id, metric_key="a", page_token="x")
        assert wrong.status_code == 400


@on_every_database
def test_points_beyond_the_limits_are_thinned_and_values_stay_exact(tmp_path: Path) -> None:
    with server(tmp_path, Clock(), logged_points_of_metric=4000, logged_points_of_job=6000) as api:
        program = Program(api)
        assert curves(api) == {}
        for batch in range(30):
            metrics = [
                {"key": name, "value": (step * 7919) % 10_007, "step": step, "timestamp": step + 1}
                for step in range(batch * 500, batch * 500 + 500)
                for name in ("a", "b")
            ]
            program.own("log-batch", metrics=metrics)
        values = [(step * 7919) % 10_007 for step in range(15_000)]
        key = int(program.run_id[4:])
        with api.use_cases.backend.store.read() as reader:
            rows = store.points_after(reader, key, 0, 1000)
            counts = store.logged_counts(reader, key)
            summary = job_values.values_of(reader, [key], None, None)[key].metrics["a"]
        stored = [point for row in rows for point in row.points]
        assert {name: sum(point[0] == name for point in stored) for name in ("a", "b")} == counts
        assert len(stored) <= 7000
        assert max(len(row.points) for row in rows) <= 1000
        assert (summary.step, summary.last, summary.lowest, summary.highest) == (
            *(14_999, values[-1]),
            *(min(values), max(values)),
        )
        of_a = [(point[1], point[2]) for point in stored if point[0] == "a"]
        assert (of_a[0], of_a[-1]) == ((0, values[0]), (14_999, values[-1]))
        assert {value for _, value in of_a} >= {min(values), max(values)}
        assert [line for line in program.lines if "are thinned" in line] == program.lines
        assert len(program.lines) == 1


def test_artifacts_of_a_job_without_a_job_dir_are_answered_and_not_kept(api: Server) -> None:
    program = Program(api)
    uri = program.read()["info"]["artifact_uri"]
    assert uri == f"mlflow-artifacts:/{program.run_id}"
    path = f"{ARTIFACTS}/{program.run_id}/x"
    for _ in range(2):
        answer = api.client.request("PUT", path, content=b"x" * 10_000, headers=program.headers)
        assert (answer.status_code, answer.json()) == (200, {})
    (line,) = program.lines
    assert "--job-dir" in line
    refused = api.client.request("PUT", path, content=b"", headers=ALICE)
    assert (refused.status_code, "written by the program" in refused.json()["message"]) == (403, True)
    assert api.status("GET", path) == 404
    assert files(api, program.run_id) == []


def test_artifacts_of_a_job_dir_are_read_through_the_server(tmp_path: Path) -> None:
    with server(tmp_path / "data", Clock(), job_dir_roots=(str(tmp_path / "jobs"),), one_user=True) as api:
        directory = tmp_path / "jobs" / "mine"
        program = Program(api, jobDir=str(directory))
        assert program.read()["info"]["artifact_uri"] == f"{directory}/mlflow"
        program.done("runs/create", run_name="first")
        child = program.done("runs/create", run_name="fold")["run"]["info"]
        assert child["artifact_uri"] == f"{directory}/mlflow/fold"
        for name in ("mlflow/a.txt", "mlflow/plots/b.png", "mlflow/fold/c.txt", "secret.txt"):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(name)
        run_id = program.run_id
        listed = api.get(f"{API}/artifacts/list", run_id=run_id)
        assert listed["root_uri"] == f"mlflow-artifacts:/{run_id}"
        assert [(file["path"], file["is_dir"], file.get("file_size")) for file in listed["files"]] == [
            ("a.txt", False, 12),
            ("fold", True, None),
            ("plots", True, None),
        ]
        below = api.get(f"{API}/artifacts/list", run_id=run_id, path="plots")["files"]
        assert [file["path"] for file in below] == ["plots/b.png"]
        assert files(api, f"{run_id}/plots") == ["b.png"]
        assert files(api, child["run_id"]) == ["c.txt"]
        for path in (f"{run_id}/nowhere", f"{run_id}/a.txt", "none", ""):
            assert files(api, path) == []
        answer = api.client.get(f"{ARTIFACTS}/{run_id}/plots/b.png", headers=VERA)
        assert (answer.status_code, answer.text) == (200, "mlflow/plots/b.png")
        statuses = {f"{run_id}/..%2Fsecret.txt": 400, f"{run_id}/no": 404, "job-99/x": 404, run_id: 400}
        assert {path: api.status("GET", f"{ARTIFACTS}/{path}", VERA) for path in statuses} == statuses
