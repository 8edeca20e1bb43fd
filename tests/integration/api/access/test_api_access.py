"""Permissions of API calls, and the error envelope."""

import itertools
from pathlib import Path
from unittest.mock import Mock

import pytest

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, AGENT, ALICE, BOB, VERA, Clock, Server, package_job, server

JOBS = "/v1/projects/p/jobs"


def test_call_without_a_good_token_is_401(api: Server) -> None:
    headers: tuple[dict[str, str], ...] = (
        {},
        {"Authorization": "Basic YQ=="},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
    )
    for path, given in itertools.product((JOBS, "/agent/v1/server", "/", "/nothing", "/redoc"), headers):
        answer = api.client.get(path, headers=given)
        assert (answer.status_code, answer.json()["error"]["status"]) in (
            (401, "UNAUTHENTICATED"),
            (429, "RESOURCE_EXHAUSTED"),  # wrong tokens alone are counted
        ), (path, given)
        assert answer.headers["www-authenticate"] == 'Bearer realm="trainyard"'


def submit(api: Server, job_id: str, who: dict[str, str]) -> None:
    body = {"jobId": job_id, "trainingInput": package_job(), "labels": {"team": "x"}}
    assert api.client.post(JOBS, json=body, headers=who).status_code == 200


def change(api: Server, job_id: str, who: dict[str, str]) -> tuple[int, int]:
    """Status codes of patching the labels, then cancelling."""
    patched = api.client.patch(
        f"{JOBS}/{job_id}", params={"updateMask": "labels"}, json={"labels": {"a": "b"}}, headers=who
    )
    cancelled = api.client.post(f"{JOBS}/{job_id}:cancel", headers=who)
    return patched.status_code, cancelled.status_code


@on_every_database
def test_submitter_changes_its_own_jobs_and_no_others(api: Server) -> None:
    submit(api, "hers", ALICE)
    before = api.job("hers")
    assert change(api, "hers", BOB) == (403, 403)
    assert api.job("hers") == before
    answer = api.client.post(f"{JOBS}/hers:cancel", headers=BOB)
    assert answer.json()["error"]["message"] == (
        "You are bob (submitter); the job hers belongs to alice. A submitter of that name, or an admin, may change it."
    )
    assert change(api, "hers", ALICE) == (200, 200)
    assert "alice asked to cancel the job." in api.events("hers")


def test_viewer_reads_all_and_changes_nothing(api: Server) -> None:
    submit(api, "hers", ALICE)
    assert api.client.get(f"{JOBS}/hers", headers=VERA).json() == api.job("hers")
    assert api.client.get("/trainyard/v1/projects/p/jobs/hers", headers=VERA).json() == api.detail("hers")
    assert change(api, "hers", VERA) == (403, 403)
    answer = api.client.post(JOBS, json={}, headers=VERA)
    assert answer.json()["error"]["message"] == (
        "You are vera (viewer). POST /v1/projects/p/jobs needs the role submitter."
    )


@on_every_database
def test_job_has_an_owner_that_filters_match(api: Server) -> None:
    submit(api, "hers", ALICE)
    submit(api, "his", BOB)
    assert api.detail("hers")["owner"] == "alice"
    for text in ("owner=alice", "owner:al*", "NOT owner=bob", "owner!=bob"):
        assert [job["jobId"] for job in api.get(JOBS, filter=text)["jobs"]] == ["hers"]
    assert "owner" not in api.job("hers")  # the v1 API has no such field


@on_every_database
def test_job_without_an_owner_is_changed_by_admins_only(api: Server) -> None:
    submit(api, "old", ALICE)
    with api.use_cases.backend.store.write() as writer:
        job = writer.job("p", "old")
        assert job is not None
        job.owner = ""
    assert change(api, "old", ALICE) == (403, 403)
    answer = api.client.post(f"{JOBS}/old:cancel", headers=ALICE)
    assert "the job old has no known owner. An admin may change it." in answer.text
    assert change(api, "old", ADMIN) == (200, 200)


def test_server_without_tokens_refuses_all_calls(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock, tokens=()) as api:
        assert api.client.get("/v1/projects/p/jobs", headers=ADMIN).status_code == 401


def test_error_is_always_the_envelope(api: Server) -> None:
    for method, path, code, status in (
        ("GET", "/v1/nothing", 404, "NOT_FOUND"),
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("DELETE", "/v1/projects/p/jobs/j", 405, "UNIMPLEMENTED"),
        ("GET", "/trainyard/v1/projects/p/jobs/none", 404, "NOT_FOUND"),
        ("GET", "/trainyard/v1/projects/p/jobs/none/logs", 404, "NOT_FOUND"),
        ("GET", "/trainyard/v1/projects/p/jobs/none/explain", 404, "NOT_FOUND"),
        ("GET", "/trainyard/v1/projects/p/jobs/none/explain?run=x", 400, "INVALID_ARGUMENT"),
        ("POST", "/agent/v1/sync", 400, "INVALID_ARGUMENT"),  # it has no body
        ("POST", "/agent/v1/runs/r/replicas/master-replica-0/logs", 400, "INVALID_ARGUMENT"),
    ):
        answer = api.client.request(method, path, headers=AGENT if path.startswith("/agent/") else ADMIN)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["status"]) == (code, code, status), path
        assert error["message"]


def test_unexpected_error_is_500_without_internal_details(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr("trainyard_server.services.jobs.jobs.Jobs.get", broken)
    answer = api.client.get("/v1/projects/p/jobs/j", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["status"]) == (500, "INTERNAL")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


def test_full_disk_is_503(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("trainyard_server.services.jobs.jobs.Jobs.get", full)
    answer = api.client.get("/v1/projects/p/jobs/j", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["status"]) == (503, "UNAVAILABLE")
