"""Figures for Prometheus: what they count, who may read them, and that labels are bounded."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, TOKENS, WITH_GPU, Clock, Server, gpu_agent, server
from trainyard_cli.v1_client import error_of
from trainyard_protocol import service_log
from trainyard_protocol.errors import Internal, NotFound
from trainyard_protocol.service_log import LogFormat
from trainyard_protocol.states import Reason
from trainyard_server.capabilities.monitoring import exposition
from trainyard_server.domain.access.permissions import Role, Token

PROMETHEUS = {"Authorization": "Bearer prometheus-secret"}
OPEN = {"Accept": "application/openmetrics-text; version=1.0.0"}
DEPLOY = Path(__file__).parents[3] / "deploy" / "monitoring"


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


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    yield stream
    for handler in list(logging.getLogger().handlers):
        if isinstance(handler, service_log.ServiceLogHandler):
            logging.getLogger().removeHandler(handler)


def test_request_has_one_id_and_a_failure_is_found_by_it(
    api: Server, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    service_log.set_up("json", log)
    given = api.client.get("/healthz", headers={"X-Request-Id": "from-the-proxy.7"})
    assert given.headers["X-Request-Id"] == "from-the-proxy.7"
    for bad in ("x" * 65, "a b", '"'):
        assert api.client.get("/healthz", headers={"X-Request-Id": bad}).headers["X-Request-Id"] != bad

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("of the inside")

    monkeypatch.setattr(api.use_cases.jobs, "get", broken)
    answer = api.client.get("/v1/projects/p/jobs/job", headers=ADMIN)
    assert answer.status_code == 500
    entry = next(entry for entry in map(json.loads, log.getvalue().splitlines()) if "exception" in entry)
    assert entry["request"] == answer.headers["X-Request-Id"]
    assert entry["level"] == "ERROR"
    assert "RuntimeError: of the inside" in entry["exception"]
    error = error_of(httpx.Response(500, json=answer.json(), headers=answer.headers))
    assert isinstance(error, Internal)
    assert f"(request {entry['request']}, as in the server's log)" in error.message
    missing = httpx.Response(404, json={"error": {"code": 404, "status": "NOT_FOUND", "message": "none"}})
    assert error_of(missing).message == "none"
    assert isinstance(error_of(missing), NotFound)


@pytest.mark.parametrize(("log_format", "ending"), [("text", " [request abc]"), ("json", '"request": "abc"}')])
def test_lines_have_the_request_and_the_last_ones_are_kept(
    log: io.StringIO, log_format: LogFormat, ending: str
) -> None:
    service_log.set_up(log_format, log)
    token = service_log.request_id.set("abc")
    logging.getLogger("a.b").warning('%s "quoted"', "text")
    (line,) = log.getvalue().splitlines()
    assert (line.endswith(ending), service_log.recent[-1]) == (True, line)
    logging.getLogger("a.b").error("GET / failed", exc_info=RuntimeError("of the inside"))
    service_log.request_id.reset(token)
    if log_format == "text":  # the request is behind the first line of a traceback
        _, first, *_, last = log.getvalue().splitlines()
        assert first.endswith("ERROR a.b: GET / failed [request abc]")
        assert last == "RuntimeError: of the inside"


def test_last_lines_that_operators_get_have_no_token_of_the_servers_files(api: Server, log: io.StringIO) -> None:
    service_log.set_up("text", log)
    for token in TOKENS:
        logging.getLogger("a.b").warning("with %s at the end", token.secret)
    lines = api.client.get("/trainyard/v1/debug", headers=ADMIN).json()["log"]
    shown = [line.partition("a.b: ")[2] for line in lines if "a.b: with" in line]
    assert shown == ["with *** at the end"] * len(TOKENS)
    assert [token.name for token in TOKENS if any(token.secret in line for line in lines)] == []
