"""Permissions of API calls, and the error envelope."""

import itertools
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from beds.databases import on_every_database
from integration.api.api_support import ADMIN, AGENT, ALICE, BOB, VERA, Clock, Server, server

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


def change(api: Server, job_id: str, who: dict[str, str]) -> tuple[int, int]:
    """Status codes of patching the labels, then cancelling."""
    patched = api.status("PATCH", f"{JOBS}/{job_id}?updateMask=labels", who, json={"labels": {"a": "b"}})
    return patched, api.status("POST", f"{JOBS}/{job_id}:cancel", who)


@on_every_database
def test_job_has_an_owner_that_filters_match_and_submitters_change_their_own_alone(api: Server) -> None:
    api.create("hers", who=ALICE)
    api.create("his", who=BOB)
    assert api.detail("hers")["owner"] == "alice"
    for text in ("owner=alice", "owner:al*", "NOT owner=bob", "owner!=bob"):
        assert [job["jobId"] for job in api.get(JOBS, filter=text)["jobs"]] == ["hers"]
    before = api.job("hers")
    assert "owner" not in before  # the v1 API has no such field
    assert api.done("GET", f"{JOBS}/hers", VERA) == before, "viewers read all"
    assert api.done("GET", "/trainyard/v1/projects/p/jobs/hers", VERA) == api.detail("hers")
    assert change(api, "hers", BOB) == change(api, "hers", VERA) == (403, 403)
    assert api.job("hers") == before
    assert api.refusal("POST", f"{JOBS}/hers:cancel", 403, who=BOB)["message"] == (
        "You are bob (submitter); the job hers belongs to alice. A submitter of that name, or an admin, may change it."
    )
    viewer = "You are vera (viewer). POST /v1/projects/p/jobs needs the role submitter."
    assert api.refusal("POST", JOBS, 403, who=VERA, json={})["message"] == viewer
    assert change(api, "hers", ALICE) == (200, 200)
    assert "alice asked to cancel the job." in api.events("hers")


@on_every_database
def test_job_without_an_owner_is_changed_by_admins_only(api: Server) -> None:
    api.create("old", who=ALICE)
    with api.use_cases.backend.store.write() as writer:
        job = writer.job("p", "old")
        assert job is not None
        job.owner = ""
    assert change(api, "old", ALICE) == (403, 403)
    api.refusal("POST", f"{JOBS}/old:cancel", 403, "the job old has no known owner. An admin may change it.", ALICE)
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
        error = api.refusal(method, path, code, who=AGENT if path.startswith("/agent/") else ADMIN)
        assert (error["status"], bool(error["message"])) == (status, True), path


def test_unexpected_error_is_500_without_internal_details_and_a_full_disk_503(
    api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for failure, code, status in (
        (RuntimeError("a secret of the inside"), 500, "INTERNAL"),
        (OSError(28, "No space left on device"), 503, "UNAVAILABLE"),
    ):
        monkeypatch.setattr("trainyard_server.services.jobs.jobs.Jobs.get", Mock(side_effect=failure))
        error = api.refusal("GET", f"{JOBS}/j", code)
        assert error["status"] == status
        assert not re.search("secret|Traceback", str(error))
