"""Quotas over HTTP: what is refused, what waits, and what a client sees of it."""

from pathlib import Path
from typing import Any

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, Clock, ScriptedAgent, Server, server
from trainyard_protocol.net.warning_headers import WARNING, warnings_of
from trainyard_protocol.wire.agents import MountOffer

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


def notes(api: Server, project: str, job_id: str, who: dict[str, str] = ADMIN, **training: Any) -> list[str]:
    """The notes about a job that is submitted to the project, the same as those of its dry run."""
    answers = [api.submit(job_id, who, project, params=p, **training) for p in ({"validateOnly": "true"}, {})]
    assert [answer.status_code for answer in answers] == [200, 200], answers[-1].text
    dry, created = (warnings_of(answer.headers.get_list(WARNING)) for answer in answers)
    assert dry == created
    return created


@on_every_database
def test_first_job_of_a_project_is_told_with_the_project_that_may_be_meant(api: Server) -> None:
    assert notes(api, "vision", "a") == [], "there is no other project"
    assert notes(api, "vison", "b") == [
        'The project vison is new: it has no jobs and no members yet. Did you mean "vision"? '
        "`trainyard projects list` shows all."
    ]
    assert notes(api, "vison", "c") == []
    assert "Did you mean" not in notes(api, "audio-models", "d")[0]
    assert api.set_role("carl", "submitter", "speech") == 200
    assert notes(api, "speech", "e", api.token(owner="carl")[1]) == [], "its member knows of it"


def test_mount_that_no_agent_has_is_told_with_those_there_are(api: Server) -> None:
    def wants(job_id: str, *names: str, project: str = "p") -> list[str]:
        return [note for note in notes(api, project, job_id, mounts=[{"name": n} for n in names]) if "mount" in note]

    assert wants("a", "imagnet") == [], "no agent has joined"
    ScriptedAgent(api, mounts=(MountOffer(name="imagenet"), MountOffer(name="scans", projects=("q",)))).sync()
    assert wants("b", "imagenet") == []
    waits = "the job waits until one has it (`--mounts` of the agent)."
    assert wants("c", "imagnet", "scans") == [
        f'No agent has the mount imagnet for the project p: {waits} Did you mean "imagenet"? Agents have: imagenet.',
        f"No agent has the mount scans for the project p: {waits} Agents have: imagenet.",
    ]
    assert wants("d", "scans", project="q") == []
