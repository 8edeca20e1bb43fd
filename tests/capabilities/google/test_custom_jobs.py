"""Custom jobs of Vertex AI, by the calls that its clients make."""

from typing import Any

from integration.api.api_support import ALICE, ScriptedAgent, Server, custom_job
from trainyard_protocol.answers.custom_jobs import CustomJobAnswer

HERE = "/v1/projects/p/locations/us-central1/customJobs"


def create(api: Server, path: str = HERE, **fields: Any) -> dict[str, Any]:
    created: dict[str, Any] = api.done("POST", path, ALICE, json=custom_job(packageUris=[]) | fields)
    CustomJobAnswer.model_validate(created)
    return created


def id_of(created: dict[str, Any]) -> str:
    return str(created["name"]).rpartition("/")[2]


def test_custom_job_is_a_job_and_goes_through_the_states_of_vertex(api: Server, agent: ScriptedAgent) -> None:
    created = create(api, labels={"team": "a"})
    job_id = id_of(created)
    job = api.job(job_id)
    assert job["trainingInput"]["runtimeVersion"] == "2.15"
    assert job["labels"] == {"team": "a"}
    assert created == {
        "name": f"projects/p/locations/us-central1/customJobs/{job_id}",
        "displayName": "A custom job",
        "jobSpec": job["trainingInput"]["customJob"]["jobSpec"],
        "state": "JOB_STATE_QUEUED",
        "createTime": "2026-11-20T12:00:00Z",
        "updateTime": "2026-11-20T12:00:00Z",
        "labels": {"team": "a"},
    }
    agent.turn(1)
    states = [api.get(f"{HERE}/{job_id}")["state"]]
    agent.start()
    states.append(api.get(f"{HERE}/{job_id}")["state"])
    agent.log("ValueError: too large")
    agent.exit(code=1)
    failed = api.get(f"{HERE}/{job_id}")
    assert [*states, failed["state"]] == ["JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_FAILED"]
    assert failed["error"]["code"] == 3
    assert failed["error"]["message"].startswith(
        "The replica workerpool0-0 exited with a non-zero status of 1. ValueError: too large"
    )
    assert failed["updateTime"] == failed["endTime"]
    CustomJobAnswer.model_validate(failed)


def test_web_access_leads_to_the_replicas_of_each_pool(api: Server, agent: ScriptedAgent) -> None:
    given = custom_job(packageUris=[])
    pools = given["jobSpec"]["workerPoolSpecs"]
    given["jobSpec"] |= {"workerPoolSpecs": [*pools, *pools], "enableWebAccess": True}
    created = api.done("POST", HERE, ALICE, json=given)
    agent.begin()
    running = api.get(f"{HERE}/{id_of(created)}")
    assert running["webAccessUris"].keys() == {"workerpool0-0", "workerpool1-0"}


def test_list_has_custom_jobs_of_the_location_alone_and_is_filtered_and_paged(api: Server) -> None:
    api.create("plain", region="us-central1")
    first, second, third = (create(api, displayName=name) for name in ("one", "two", "two"))
    create(api, HERE.replace("us-central1", "europe-west4"))
    api.cancel(id_of(third))

    def listed(**query: Any) -> list[str]:
        return [job["name"] for job in api.get(HERE, **query).get("customJobs", [])]

    every = [third["name"], second["name"], first["name"]]
    assert listed() == every
    page = api.get(HERE, pageSize=2)
    assert [job["name"] for job in page["customJobs"]] == every[:2]
    assert listed(pageSize=2, pageToken=page["nextPageToken"]) == every[2:]
    assert listed(filter='display_name="two" AND state="JOB_STATE_QUEUED"') == [second["name"]]
    assert listed(filter='displayName="one" OR state=JOB_STATE_CANCELLED') == [third["name"], first["name"]]
    assert listed(filter='NOT state="JOB_STATE_QUEUED"') == [third["name"]]
    assert listed(filter=f'name="{first["name"]}"') == [first["name"]]
    assert listed(filter='create_time>"2030-01-01T00:00:00Z"') == []
    assert api.get(HERE, filter='display_name="none"') == {}
    assert api.refusal("GET", HERE, 400, params={"filter": "state=RUNING"})["status"] == "INVALID_ARGUMENT"
    # What is no custom job, or is elsewhere, is not found.
    elsewhere = f"{HERE.replace('us-central1', 'europe-west4')}/{id_of(first)}"
    for method, path in (("GET", ""), ("POST", ":cancel"), ("DELETE", "")):
        for job in (f"{HERE}/plain", f"{HERE}/none", elsewhere):
            assert api.refusal(method, job + path, 404)["status"] == "NOT_FOUND", (method, job)
    assert api.get(f"{HERE}/{id_of(first)}")["state"] == "JOB_STATE_QUEUED"


def test_bad_request_and_rules_of_jobs_name_the_fields_of_vertex(api: Server) -> None:
    at = "custom_job.job_spec.worker_pool_specs[0]"
    broken = custom_job(packageUris=["gs://{BUCKET}/x-1.tar.gz"], env=[{"name": "TF_CONFIG", "value": "{}"}])
    broken["jobSpec"]["workerPoolSpecs"][0]["machineSpec"] = {"machineType": "n1-standard-5"}
    package = f"{at}.python_package_spec"
    table: list[tuple[dict[str, Any], set[str]]] = [
        ({"displayName": ""}, {"custom_job.display_name"}),
        ({"labels": {"A": "b"}}, {"custom_job.labels"}),
        ({"jobSpec": {"workerPoolSpecs": [{"replicaCount": 2}]}}, {f"{at}.replica_count"}),
        (broken, {f"{at}.machine_spec.machine_type", f"{package}.package_uris[0]", f"{package}.env"}),
    ]
    for fields, expected in table:
        error = api.refusal("POST", HERE, 400, who=ALICE, json=custom_job() | fields)
        found = {violation["field"] for violation in error["details"][0]["fieldViolations"]}
        assert (error["status"], expected <= found) == ("INVALID_ARGUMENT", True), found
        assert fields is not broken or found == expected
