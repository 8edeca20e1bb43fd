"""Quotas over HTTP: what is refused, what waits, and what a client sees of it."""

from pathlib import Path

import pytest

from databases import on_every_database
from integration.api.api_support import ADMIN, Clock, ScriptedAgent, package_job, server
from trainyard_server.main import main


def test_job_above_its_projects_quota_is_refused_as_the_service_did(tmp_path: Path) -> None:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("projects: {p: {vcpus: 2}}")
    body = {"jobId": "large", "trainingInput": package_job(masterType="local-4")}
    with server(tmp_path / "data", Clock(), quotas=quotas) as one:
        for params in ({}, {"validateOnly": "true"}):
            answer = one.client.post("/v1/projects/p/jobs", json=body, params=params, headers=ADMIN)
            assert answer.status_code == 429
            assert answer.json()["error"] == {
                "code": 429,
                "status": "RESOURCE_EXHAUSTED",
                "message": "Quota failure for project p. The request for 4 vCPU exceeds the allowed maximum of 2 vCPU. "
                "Ask for less, or have the quota raised.",
            }
        assert one.client.get("/v1/projects/p/jobs/large", headers=ADMIN).status_code == 404
        assert one.client.post("/v1/projects/q/jobs", json=body, headers=ADMIN).status_code == 200
        ScriptedAgent(one, cpus=2, mode="fit").sync()  # here it would get 2
        assert one.client.post("/v1/projects/p/jobs", json=body, headers=ADMIN).status_code == 200


@on_every_database
def test_job_waits_for_its_projects_quota_and_starts_when_there_is_some(tmp_path: Path) -> None:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("default: {runningJobs: 1}")
    with server(tmp_path / "data", Clock(), quotas=quotas) as one:
        agent = ScriptedAgent(one, cpus=4)
        agent.sync()
        one.create("first")
        one.create("second")
        one.tick()
        assert one.detail("second")["waiting"] == "project p uses 1 of its 1 running jobs; the job needs 1"
        assert "Job second waits: project p uses 1 of its 1 running jobs; the job needs 1." in one.events(
            "second"
        )
        agent.sync()
        agent.start()
        agent.exit()
        agent.sync()
        assert one.job("second")["state"] == "PREPARING"


def test_mistake_in_the_file_of_quotas_is_said_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quotas.yaml").write_text("default: {vcpu: 1}")
    arguments = ["--data-dir", tmp_path / "data", "--port", 0, "--quotas", tmp_path / "quotas.yaml"]
    assert main(list(map(str, arguments))) == 1
    assert "quotas.yaml:1: default.vcpu: Extra inputs are not permitted." in capsys.readouterr().err
