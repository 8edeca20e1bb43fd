"""MLflow's searches of runs and experiments, as MLflow's own server answers them."""

from typing import Any

import pytest

from beds.databases import on_every_database
from capabilities.tracking.test_mlflow import API, Program
from integration.api.api_support import VERA, Server
from trainyard_server.capabilities.tracking.search import run_queries

SEARCH = f"{API}/runs/search"


class Found:
    """The runs of a program: its own, and further ones with metrics, parameters and tags of their own."""

    def __init__(self, api: Server) -> None:
        self.api = api
        self.program = Program(api)
        self.experiment = self.program.read()["info"]["experiment_id"]
        self.program.create("own")
        for name, loss, lr in (("one", 0.5, "0.1"), ("two", 0.25, "0.01"), ("three", "NaN", "0.1"), ("four", None, "")):
            api.clock.advance(10)
            run_id = self.program.create(name)
            if loss is not None:
                self.program.done("runs/log-metric", run_id=run_id, key="val/loss", value=loss, step=1)
                params = [{"key": "lr", "value": lr}, {"key": "batch size", "value": f"{len(name)}"}]
                tags = [{"key": "Mark", "value": f"a_{name}\\%[x]"}]
                self.program.done("runs/log-batch", run_id=run_id, params=params, tags=tags)

    def names(self, text: str = "", **more: Any) -> list[str]:
        return [run["info"]["run_name"] for run in self.page(text, **more)["runs"]]

    def page(self, text: str = "", **more: Any) -> dict[str, Any]:
        page: dict[str, Any] = self.api.done("POST", SEARCH, VERA, json=self.body(text, **more))
        return page

    def body(self, text: str = "", **more: Any) -> dict[str, Any]:
        return {"experiment_ids": [self.experiment], "filter": text, **more}


@on_every_database
def test_filters_find_runs_as_mlflow_does(api: Server) -> None:
    found = Found(api)
    first = found.program.run_id
    started = found.program.read(f"{first}-2")["info"]["start_time"]
    dataset = {"dataset": {"name": "train", "digest": "d1"}, "tags": [{"key": "mlflow.data.context", "value": "eval"}]}
    found.program.done("runs/log-inputs", run_id=f"{first}-2", datasets=[dataset])
    found.program.done("runs/update", run_id=f"{first}-1", status="FINISHED")
    found.program.done("runs/set-tag", run_id=f"{first}-4", key="mlflow.user", value="me")
    found.program.done("runs/set-tag", run_id=f"{first}-4", key="mlflow.parentRunId", value=first)
    cases = {
        "": ["four", "three", "two", "one", "own"],
        "metrics.`val/loss` < 0.3": ["two"],
        'metrics."val/loss" != 0.25': ["one"],
        "metrics.`one/val/loss` > 0": [],
        "metrics.val/loss >= 0.25 AND params.lr = '0.1'": ["one"],
        "params.lr != '0.1'": ["two"],
        "params.lr IN ('0.1', '0.01') and params.\"batch size\" = '3'": ["two", "one"],
        "params.lr NOT IN ('0.1')": ["two"],
        "params.lr LIKE '0.0%'": ["two"],
        "params.lr IS NULL": ["four", "own"],
        "params.lr IS NOT NULL": ["three", "two", "one"],
        "tags.Mark LIKE 'a_t%'": ["three", "two"],
        "tags.Mark LIKE 'A%'": [],
        "tags.Mark ILIKE 'A_T%'": ["three", "two"],
        r"tags.Mark LIKE '%one\%'": ["one"],
        "tags.Mark LIKE '%[x]'": ["three", "two", "one"],
        "tags.mark = 'x'": [],
        "tags.mlflow.user = 'me'": ["four"],
        "tags.mlflow.user = 'admin'": ["three", "two", "one", "own"],
        "tags.mlflow.runName = 'two'": ["two"],
        f"tags.mlflow.parentRunId = '{first}'": ["four"],
        "tags.mlflow.parentRunId IS NULL": ["three", "two", "one", "own"],
        "status = 'FINISHED'": ["one"],
        "attributes.status IN ('RUNNING')": ["four", "three", "two", "own"],
        "run_name LIKE 't%'": ["three", "two"],
        "attr.`Run name` = 'own'": ["own"],
        f"run_id = '{first}-3'": ["three"],
        f"run.run_id IN ('{first}', '{first}-2')": ["two", "own"],
        "user_id = 'admin' AND run_name = 'own'": ["own"],
        f"start_time > {started}": ["four", "three"],
        f"attribute.start_time >= {started}": ["four", "three", "two"],
        f"created = {started}": ["two"],
        f"start_time != {started}": ["four", "three", "one", "own"],
        f"start_time <= {started - 1}": ["one", "own"],
        f"start_time < {started}.5": ["two", "one", "own"],
        "start_time < 99999999999999999999999": ["four", "three", "two", "one", "own"],
        "end_time > 0": ["one"],
        "datasets.name = 'train'": ["two"],
        "dataset.digest LIKE 'd%' AND dataset.context = 'eval'": ["two"],
        "dataset.name = 'test'": [],
    }
    wrong = {text: found.names(text) for text, names in cases.items() if found.names(text) != names}
    assert wrong == {}
    body = found.body("run_name = 'own'")
    assert [run["info"]["run_id"] for run in found.program.done("runs/search", **body)["runs"]] == [first]


@on_every_database
def test_orders_have_runs_without_a_value_last_and_pages_have_all_once(
    api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Found(api)
    cases: list[tuple[list[str], list[str]]] = [
        (["metrics.`val/loss` ASC"], ["two", "one", "three", "four", "own"]),
        (["metrics.`val/loss` DESC"], ["one", "two", "three", "four", "own"]),
        (["params.lr"], ["two", "three", "one", "four", "own"]),
        (["params.lr DESC", "start_time ASC"], ["one", "three", "two", "own", "four"]),
        (["attributes.start_time ASC"], ["own", "one", "two", "three", "four"]),
        (["run_name"], ["four", "one", "own", "three", "two"]),
        (["tags.Mark desc"], ["two", "three", "one", "four", "own"]),
    ]
    assert [case for case in cases if found.names(order_by=case[0]) != case[1]] == []
    names, token = list[str](), ""
    while True:
        page = found.page(max_results=2, page_token=token)
        names += [run["info"]["run_name"] for run in page["runs"]]
        token = page.get("next_page_token", "")
        if not token:
            break
    assert names == ["four", "three", "two", "one", "own"]
    with monkeypatch.context() as short:
        short.setattr(run_queries, "PAGE_CHARACTERS", 40)
        page = found.page(max_results=50_000)
    assert (len(page["runs"]), page["next_page_token"]) == (2, "2")
    for wrong in ({"max_results": 50_001}, {"page_token": "-1"}):
        assert api.status("POST", SEARCH, VERA, json=found.body(**wrong)) == 400
    assert found.names(experiment_ids=[]) == found.names(experiment_ids=["5"]) == []
    found.program.done("runs/delete", run_id=f"{found.program.run_id}-2")
    assert found.names(run_view_type="ACTIVE_ONLY") == ["four", "three", "one", "own"]
    assert found.names(run_view_type="DELETED_ONLY") == ["two"]
    assert found.names(run_view_type="ALL") == ["four", "three", "two", "one", "own"]


def test_experiments_are_filtered(api: Server) -> None:
    api.create()
    for text, names in {
        "": ["p"],
        "name = 'p'": ["p"],
        "attribute.name LIKE 'P'": [],
        "name ILIKE 'P'": ["p"],
        "name != 'p'": [],
        "tags.a = 'b'": [],
        "tags.a IS NULL": ["p"],
    }.items():
        body = {"filter": text, "order_by": ["name DESC"], "max_results": 5}
        answer = api.done("POST", f"{API}/experiments/search", VERA, json=body)
        assert [experiment["name"] for experiment in answer["experiments"]] == names, text
    deleted = api.done("POST", f"{API}/experiments/search", VERA, json={"view_type": "DELETED_ONLY"})
    assert deleted == {"experiments": []}
