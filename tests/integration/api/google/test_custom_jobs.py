"""Custom jobs of Vertex AI, by the calls that its clients make."""

from typing import Any

import httpx
import pytest

from integration.api.api_support import ADMIN, ALICE, BOB, ScriptedAgent, Server, custom_job, package_job
from trainyard_protocol.views.custom_jobs import CustomJobAnswer

HERE = "/v1/projects/p/locations/us-central1/customJobs"


def create(api: Server, path: str = HERE, **fields: Any) -> dict[str, Any]:
    answer = api.client.post(path, json=custom_job(packageUris=[]) | fields, headers=ALICE)
    assert answer.status_code == 200, answer.text
    created: dict[str, Any] = answer.json()
    CustomJobAnswer.model_validate(created)
    return created


def id_of(created: dict[str, Any]) -> str:
    return str(created["name"]).rpartition("/")[2]


def error(answer: httpx.Response) -> tuple[int, str, str]:
    body = answer.json()["error"]
    return answer.status_code, body["status"], body["message"]


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
    states = []
    api.tick(1)
    agent.sync()
    states.append(api.get(f"{HERE}/{job_id}")["state"])
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
    created = api.client.post(HERE, json=given, headers=ALICE).json()
    api.tick()
    agent.sync()
    agent.start()
    running = api.get(f"{HERE}/{id_of(created)}")
    assert running["webAccessUris"].keys() == {"workerpool0-0", "workerpool1-0"}


def test_list_has_custom_jobs_of_the_location_alone_and_is_filtered_and_paged(api: Server) -> None:
    api.create("plain")
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
    refused = api.client.get(HERE, params={"filter": "state=RUNING"}, headers=ADMIN)
    assert error(refused)[:2] == (400, "INVALID_ARGUMENT")


def test_job_that_is_no_custom_job_or_elsewhere_is_not_found(api: Server) -> None:
    api.create("plain", region="us-central1")
    created = create(api)
    elsewhere = f"{HERE.replace('us-central1', 'europe-west4')}/{id_of(created)}"
    for method, path in (("GET", ""), ("POST", ":cancel"), ("DELETE", "")):
        for job in (f"{HERE}/plain", f"{HERE}/none", elsewhere):
            answer = api.client.request(method, job + path, headers=ADMIN)
            assert error(answer)[:2] == (404, "NOT_FOUND"), (method, job)
    assert api.get(f"{HERE}/{id_of(created)}")["state"] == "JOB_STATE_QUEUED"


def test_cancel_and_delete_are_the_owners_and_audited_as_those_of_jobs(api: Server) -> None:
    created = create(api)
    path = f"{HERE}/{id_of(created)}"
    assert error(api.client.request("DELETE", path, headers=ALICE))[:2] == (400, "FAILED_PRECONDITION")
    assert error(api.client.post(f"{path}:cancel", headers=BOB))[:2] == (403, "PERMISSION_DENIED")
    assert api.client.post(f"{path}:cancel", json={}, headers=ALICE).json() == {}
    cancelled = api.get(path)
    assert cancelled["state"] == "JOB_STATE_CANCELLED"
    assert cancelled["error"] == {"code": 1, "message": "The job was cancelled by the user."}
    deleted = api.client.request("DELETE", path, headers=ALICE).json()
    assert (deleted["done"], deleted["response"]) == (True, {"@type": "type.googleapis.com/google.protobuf.Empty"})
    assert error(api.client.get(path, headers=ADMIN))[0] == 404
    rows = api.get("/trainyard/v1/audit", project="p")["entries"]
    every = [(row["actor"], row["action"], row["subject"]) for row in rows]
    calls = [("alice", "delete"), ("alice", "cancel"), ("bob", "cancel"), ("alice", "delete"), ("alice", "create")]
    assert every == [(actor, f"jobs.{action}", id_of(created)) for actor, action in calls]


def test_beta_paths_have_the_same_custom_jobs(api: Server) -> None:
    created = create(api, HERE.replace("/v1/", "/v1beta1/"))
    assert api.get(f"{HERE.replace('/v1/', '/v1beta1/')}/{id_of(created)}") == created
    assert api.get(f"{HERE}/{id_of(created)}") == created
    assert error(api.client.get("/v1beta1/projects/p/nothing", headers=ADMIN))[0] == 404


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"displayName": ""}, "custom_job.display_name"),
        ({"labels": {"A": "b"}}, "custom_job.labels"),
        (
            {"jobSpec": {"workerPoolSpecs": [{"replicaCount": 2}]}},
            "custom_job.job_spec.worker_pool_specs[0].replica_count",
        ),
    ],
)
def test_bad_request_names_the_field(api: Server, fields: dict[str, Any], field: str) -> None:
    answer = api.client.post(HERE, json=custom_job() | fields, headers=ALICE)
    assert error(answer)[:2] == (400, "INVALID_ARGUMENT")
    (details,) = answer.json()["error"]["details"]
    assert field in [violation["field"] for violation in details["fieldViolations"]]


def test_rules_of_jobs_hold_with_the_fields_of_vertex(api: Server) -> None:
    given = custom_job(packageUris=["gs://{BUCKET}/x-1.tar.gz"], env=[{"name": "TF_CONFIG", "value": "{}"}])
    pool = given["jobSpec"]["workerPoolSpecs"][0]
    pool["machineSpec"] = {"machineType": "n1-standard-5"}
    answer = api.client.post(HERE, json=given, headers=ALICE)
    assert answer.status_code == 400
    fields = {violation["field"] for violation in answer.json()["error"]["details"][0]["fieldViolations"]}
    at = "custom_job.job_spec.worker_pool_specs[0]"
    assert fields == {
        f"{at}.machine_spec.machine_type",
        f"{at}.python_package_spec.package_uris[0]",
        f"{at}.python_package_spec.env",
    }


def test_v1_refuses_a_training_input_that_is_not_its_custom_job(api: Server) -> None:
    job = api.job(id_of(create(api)))
    again = {"jobId": "again", "trainingInput": job["trainingInput"]}
    assert api.client.post("/v1/projects/p/jobs", json=again, headers=ALICE).status_code == 200
    assert api.get(f"{HERE}/again")["displayName"] == "A custom job"
    other = job["trainingInput"] | package_job(pythonModule="trainer.other")
    answer = api.client.post("/v1/projects/p/jobs", json={"jobId": "other", "trainingInput": other}, headers=ALICE)
    assert "custom_job Error: is another job than the training input" in error(answer)[2]
