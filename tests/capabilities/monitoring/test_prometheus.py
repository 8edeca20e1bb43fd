"""Debian's Prometheus and Alertmanager against a server: they read its figures, and tell of an agent that is silent."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from beds.installed.missing import need_program
from beds.services.receivers import http_receiver
from beds.waiting import until
from integration.api.api_support import TOKENS, WITH_GPU, Clock, gpu_agent, server, serving
from trainyard_protocol.net.loopback import free_port
from trainyard_server.domain.access.permissions import Role, Token

DEPLOY = Path(__file__).parents[3] / "deploy" / "monitoring"
RULES = DEPLOY / "alerts.yaml"


@contextmanager
def running(*command: str | Path) -> Iterator[None]:
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def written(path: Path, content: Any) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


def dashboard_queries() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


@pytest.mark.e2e
@pytest.mark.slow
def test_prometheus_reads_the_figures_and_alertmanager_tells_of_a_silent_agent(tmp_path: Path) -> None:
    prometheus, alertmanager = need_program("prometheus"), need_program("prometheus-alertmanager")
    promtool, clock = need_program("promtool"), Clock()
    tokens = (*TOKENS, Token(Role.METRICS, "prometheus", "prometheus-secret"))
    subprocess.run([promtool, "check", "rules", RULES], check=True, capture_output=True)
    tested = subprocess.run([promtool, "test", "rules", DEPLOY / "alerts_test.yaml"], text=True, capture_output=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    with ExitStack() as stack:
        api = stack.enter_context(server(tmp_path / "server", clock, tokens=tokens))
        url = stack.enter_context(serving(api.app))
        receiver = stack.enter_context(http_receiver())
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=30))
        agent = gpu_agent(api)
        api.create("job", **WITH_GPU)
        api.tick()
        agent.sync()
        agent.start()
        agent.use(gpu=0.75)
        headers = {"Authorization": "Bearer prometheus-secret"}
        text = client.get(f"{url}/metrics", headers=headers).text
        subprocess.run([promtool, "check", "metrics"], input=text, text=True, check=True, capture_output=True)

        ports = {name: free_port() for name in ("prometheus", "alertmanager")}
        route = {"receiver": "hook", "group_wait": "0s", "group_by": ["alertname", "agent"]}
        hook = {"name": "hook", "webhook_configs": [{"url": receiver.url, "send_resolved": False}]}
        alerts = written(tmp_path / "alertmanager.yml", {"route": route, "receivers": [hook]})
        rules = yaml.safe_load(RULES.read_text())
        for rule in rules["groups"][0]["rules"]:
            rule["for"] = "0s"  # the clock of the server is the test's, and that of Prometheus is not
        targets = {"targets": [f"127.0.0.1:{ports['alertmanager']}"]}
        config = written(
            tmp_path / "prometheus.yml",
            {
                "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
                "rule_files": [str(written(tmp_path / "alerts.yaml", rules))],
                "alerting": {"alertmanagers": [{"static_configs": [targets]}]},
                "scrape_configs": [
                    {
                        "job_name": "trainyard",
                        "authorization": {"credentials": "prometheus-secret"},
                        "static_configs": [{"targets": [url.removeprefix("http://")]}],
                    }
                ],
            },
        )
        stack.enter_context(
            running(
                alertmanager,
                f"--config.file={alerts}",
                f"--storage.path={tmp_path / 'alertmanager'}",
                f"--web.listen-address=127.0.0.1:{ports['alertmanager']}",
                "--cluster.listen-address=",
            )
        )
        stack.enter_context(
            running(
                prometheus,
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'prometheus'}",
                f"--web.listen-address=127.0.0.1:{ports['prometheus']}",
            )
        )

        prometheus_url = f"http://127.0.0.1:{ports['prometheus']}/api/v1/query"

        def asked(query: str) -> list[Any]:
            try:
                answer = client.get(prometheus_url, params={"query": query})
            except httpx.HTTPError:
                return []
            if answer.status_code != 200:  # it is not ready yet
                return []
            return list(answer.json()["data"]["result"])

        until(lambda: asked('trainyard_agents{state="alive"} == 1'), "Prometheus has read the figures")
        assert not asked("ALERTS")
        answers = {query: client.get(prometheus_url, params={"query": query}) for query in dashboard_queries()}
        assert [query for query, answer in answers.items() if answer.status_code != 200] == []
        (used,) = asked(next(query for query in answers if "trainyard_gpu_usage_ratio" in query))
        assert (used["metric"], used["value"][1]) == ({"exported_job": "p/job"}, "0.75")
        clock.advance(600)
        until(lambda: receiver.accepted, lambda: f"the alert arrives; there are {json.dumps(asked('ALERTS'))}")
    (alert,) = receiver.accepted[0]["alerts"]
    assert (alert["labels"]["alertname"], alert["labels"]["agent"]) == ("TrainyardAgentSilent", "laptop")
    assert "has not contacted the server for 10m" in alert["annotations"]["summary"]
