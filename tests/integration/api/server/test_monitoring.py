"""Figures for Prometheus: what they count, who may read them, and that labels are bounded."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, AGENT, ALICE, TOKENS, VERA, WITH_GPU, Clock, Server, gpu_agent, server
from trainyard_protocol.states import Reason
from trainyard_server.capabilities.monitoring import exposition
from trainyard_server.domain.access.permissions import Role, Token

PROMETHEUS = {"Authorization": "Bearer prometheus-secret"}
OPEN = {"Accept": "application/openmetrics-text; version=1.0.0"}
DEPLOY = Path(__file__).parents[4] / "deploy" / "monitoring"


@pytest.fixture
def api(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    tokens = (*TOKENS, Token(Role.METRICS, "prometheus", "prometheus-secret"))
    with server(tmp_path / "server", clock, tokens=tokens) as api:
        yield api


def families(api: Server) -> dict[str, Metric]:
    answer = api.client.get("/metrics", headers=PROMETHEUS | OPEN)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}  # type: ignore[no-untyped-call]


def values(family: Metric) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


@on_every_database
def test_figures_count_what_happened(api: Server) -> None:
    agent = gpu_agent(api)
    api.create("job", **WITH_GPU)
    api.create("other", masterType="n1-standard-64")
    agent.turn(30)
    api.clock.advance(4)
    agent.start()
    agent.use(gpu=0.75)
    agent.log("one", "two")
    agent.exit()
    api.tick()
    api.clock.advance(45)
    figures = families(api)
    assert values(figures["trainyard_jobs"]) == {("p", "SUCCEEDED"): 1, ("p", "QUEUED"): 1}
    assert values(figures["trainyard_gpu_usage_ratio"]) == {("laptop", "GPU-0", "p/job"): 0.75}
    assert values(figures["trainyard_agent_last_contact_seconds"]) == {("laptop",): 45}
    assert values(figures["trainyard_agents"])["silent",] == 1
    assert values(figures["trainyard_runs"]) == dict.fromkeys(((reason,) for reason in Reason), 0) | {("COMPLETED",): 1}
    assert values(figures["trainyard_log_lines"]) == {(): 2}
    waits = {sample.name: sample.value for sample in figures["trainyard_queue_wait_seconds"].samples}
    assert (waits["trainyard_queue_wait_seconds_count"], waits["trainyard_queue_wait_seconds_sum"]) == (1, 30)
    starts = {sample.labels.get("le"): sample.value for sample in figures["trainyard_start_seconds"].samples}
    assert (starts["1.0"], starts["5.0"], starts["+Inf"]) == (0, 1, 1)
    classes = {sample.labels["class"] for sample in figures["trainyard_request_seconds"].samples}
    assert {"agents", "jobs"} <= classes


def test_token_opens_the_figures_and_nothing_else(api: Server) -> None:
    read = [api.status("GET", "/metrics", who) for who in (PROMETHEUS, ADMIN, ALICE, VERA, AGENT, {})]
    assert read == [200, 200, 403, 403, 403, 401]
    for path in ("/v1/projects/p/jobs", "/trainyard/v1/me", "/", "/trainyard/v1/usage", "/cluster"):
        assert api.status("GET", path, PROMETHEUS) == 403
    refused = api.client.post("/sign-in", data={"token": "prometheus-secret"})
    assert refused.status_code == 403
    assert "That is the token of a monitoring system." in refused.text


def test_projects_beyond_the_limit_are_other(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MOST_PROJECTS", 2)
    for project, count in (("a", 3), ("b", 2), ("c", 1), ("d", 1)):
        for number in range(count):
            api.create(f"j{number}", project=project)
    jobs = values(families(api)["trainyard_jobs"])
    assert {project: count for (project, _), count in jobs.items()} == {"a": 3, "b": 2, "other": 2}


def test_dashboard_and_alerts_name_metrics_that_exist(api: Server) -> None:
    gpu_agent(api)
    observations = api.use_cases.backend.observations
    observations.request_ended("jobs", 0.1)
    names = {sample.name for family in families(api).values() for sample in family.samples} | set(families(api))
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [rule["expr"] for rule in rules]
    used = {name for expression in expressions for name in re.findall(r"trainyard_\w+", expression)}
    assert used <= names, used - names
    page = (DEPLOY.parents[1] / "docs" / "how-to" / "operate.md").read_text()
    assert {name for name in used if not re.search(rf"{re.sub('_(bucket|count|sum)$', '', name)}", page)} == set()
    assert [rule["alert"] for rule in rules if rule["alert"] not in page] == []
