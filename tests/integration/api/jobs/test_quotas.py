"""Quotas over HTTP: what is refused, what waits, and what a client sees of it."""

from pathlib import Path

import httpx

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, Clock, ScriptedAgent, server

DRY_RUN = {"validateOnly": "true"}
RELOAD = "/trainyard/v1/quotas:reload"


def test_job_above_its_projects_quota_is_refused_as_the_service_did(tmp_path: Path) -> None:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("projects: {p: {vcpus: 2}}")
    expected = {
        "code": 429,
        "status": "RESOURCE_EXHAUSTED",
        "message": "Quota failure for project p. The request for 4 vCPU exceeds the allowed maximum of 2 vCPU. "
        "Ask for less, or have the quota raised.",
    }
    with server(tmp_path / "data", Clock(), quotas=quotas) as one:
        for params in ({}, DRY_RUN):
            answer = one.submit("large", masterType="local-4", params=params)
            assert (answer.status_code, answer.json()["error"]) == (429, expected)
        assert one.status("GET", "/v1/projects/p/jobs/large") == 404
        one.create("large", masterType="local-4", project="q")
        ScriptedAgent(one, cpus=2, mode="fit").sync()  # here it would get 2
        one.create("large", masterType="local-4")


def test_image_that_the_project_may_not_bring_is_refused_with_what_it_may(tmp_path: Path) -> None:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("projects: {p: {images: [gcr.io/team/*]}}")

    def answer(project: str, **images: str) -> httpx.Response:
        configs = {f"{name}Config": {"imageUri": image} for name, image in images.items()}
        counts = {"scaleTier": "CUSTOM", "masterType": "local-1", "workerType": "local-1", "workerCount": 1}
        body = {"jobId": "job", "trainingInput": {**counts, **configs, "region": "r"}}
        return one.client.post(f"/v1/projects/{project}/jobs", json=body, params=DRY_RUN, headers=ADMIN)

    with server(tmp_path / "data", Clock(), quotas=quotas) as one:
        assert answer("p", master="gcr.io/team/a").status_code == 200
        assert answer("q", master="trainer").status_code == 200
        refused = answer("p", master="gcr.io/team/a", worker="trainer")
    assert refused.status_code == 400
    assert refused.json()["error"]["details"][0]["fieldViolations"] == [
        {
            "field": "worker_config.image_uri",
            "description": "trainer is not an image that jobs of project p may bring; allowed are gcr.io/team/*.",
        }
    ]


def test_engine_option_that_the_operator_does_not_allow_is_refused_with_what_is(tmp_path: Path) -> None:
    machines = tmp_path / "machines.yaml"
    machines.write_text("engineOptions: {slurm: {qos: [high]}, kubernetes: {queue: {q: [fast]}}}")

    with server(tmp_path / "data", Clock(), machine_types=machines) as one:
        one.create(params=DRY_RUN, engineOptions={"slurm": {"qos": "high"}})
        one.create(project="q", params=DRY_RUN, engineOptions={"kubernetes": {"queue": "fast"}})
        refused = one.submit(engineOptions={"slurm": {"qos": "top"}, "kubernetes": {"queue": "fast"}})
    assert refused.status_code == 400
    fields = {item["field"]: item["description"] for item in refused.json()["error"]["details"][0]["fieldViolations"]}
    assert fields.keys() == {"engine_options.slurm.qos", "engine_options.kubernetes.queue"}
    file = f"{machines}, the server's file of --machine-types"
    assert fields["engine_options.slurm.qos"] == (
        f"'top' is not allowed here; allowed: high (engineOptions.slurm.qos in {file})."
    )


@on_every_database
def test_quotas_that_are_read_again_start_what_waits_and_stop_nothing(tmp_path: Path) -> None:
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("default: {runningJobs: 1}")
    with server(tmp_path / "data", Clock(), quotas=quotas) as one:
        ScriptedAgent(one, cpus=4).sync()
        for name in ("first", "second", "third"):
            one.create(name)
        one.tick()
        quotas.write_text("default:\n  runningJobs: 2\n  vcpu: 1\n")
        message = one.refusal("POST", RELOAD, 400)["message"]
        assert message.startswith(f"{quotas}:3: default.vcpu: there is no such entry; allowed: ")
        assert {"runningJobs", "vcpus", "images"} <= {*message.rstrip(".").split("allowed: ")[1].split(", ")}
        one.tick()
        waits = "project p uses 1 of its 1 running jobs; the job needs 1"
        assert (one.job("second")["state"], one.detail("second")["waiting"]) == ("QUEUED", waits)
        assert f"Job second waits: {waits}." in one.events("second")
        quotas.write_text("default: {runningJobs: 2}\nprojects: {q: {gpus: 1}}")
        assert one.done("POST", RELOAD) == {"default": {"jobs": 2}, "projects": {"q": {"jobs": 2, "gpus": 1}}}
        one.tick()
        assert [one.job(name)["state"] for name in ("first", "second", "third")] == ["PREPARING", "PREPARING", "QUEUED"]
        quotas.write_text("default: {runningJobs: 0}")
        one.done("POST", RELOAD)
        one.tick()
        assert one.job("first")["state"] == "PREPARING"
    with server(tmp_path / "other", Clock()) as one:
        one.refusal("POST", RELOAD, 400, "The server was started without --quotas")
