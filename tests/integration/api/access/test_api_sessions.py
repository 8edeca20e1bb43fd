"""Browser sessions: cookies, CSRF protection and security headers."""

import itertools
import re
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from integration.api.api_support import ADMIN, AGENT, ALICE, BOB, TOKENS, VERA, Server
from trainyard_server.domain.access.permissions import Token
from trainyard_server.domain.access.sessions import Session

JOBS = "/v1/projects/p/jobs"
CANCEL = f"{JOBS}/job:cancel"
PAGE = {"Accept": "text/html,application/xhtml+xml"}
BY_NAME: dict[str, Token] = {token.name: token for token in TOKENS}


def signed_in(api: Server, name: str) -> Session:
    return api.use_cases.sessions.open(BY_NAME[name].credential, api.clock())


def call(
    api: Server, method: str, path: str, session: Session, headers: dict[str, str] | None = None, **given: Any
) -> httpx.Response:
    cookie = {"Cookie": f"other=1; trainyard-80={session.value}"}
    return api.client.request(method, path, headers=cookie | (headers or {}), **given)


def csrf(session: Session) -> dict[str, str]:
    return {"X-CSRF-Token": session.csrf}


def test_bearer_token_takes_precedence_over_the_session_and_a_cookie_is_of_its_port(api: Server) -> None:
    vera = signed_in(api, "vera")
    assert call(api, "GET", JOBS, vera, {"Authorization": "Bearer wrong"}).status_code == 401
    basic = {"Authorization": "Basic YTpi"}  # that of a proxy in front of us
    assert call(api, "GET", JOBS, vera, basic).status_code == 200
    assert call(api, "GET", JOBS, vera, {"Host": "server:8471"}).status_code == 401


def test_change_without_the_csrf_value_is_refused(api: Server) -> None:
    api.create()
    admin = signed_in(api, "admin")
    for headers in ({}, csrf(signed_in(api, "bob")), *({"X-CSRF-Token": value} for value in ("", "wrong"))):
        answer = call(api, "POST", CANCEL, admin, headers)
        assert (answer.status_code, answer.json()["error"]["status"]) == (403, "PERMISSION_DENIED"), headers
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/json"):
        content = f"csrf={admin.csrf}"  # it counts in forms only
        answer = call(api, "POST", CANCEL, admin, {"Content-Type": kind}, content=content)
        assert answer.status_code == 403, kind
    assert call(api, "POST", CANCEL, admin, data={"csrf": "wrong"}).status_code == 403
    assert api.job()["state"] == "QUEUED"
    assert call(api, "POST", CANCEL, admin, data={"csrf": admin.csrf}).status_code == 200
    answer = call(api, "POST", JOBS, admin, data={"csrf": admin.csrf, "x": "y"})
    # The route has read the form as what it takes: JSON.
    assert (answer.status_code, "Invalid JSON payload" in answer.text) == (400, True)


def test_request_to_a_foreign_host_name_is_refused_whoever_makes_it(api: Server) -> None:
    """DNS rebinding: the name of another site leads to this machine."""
    paths = ("/", "/sign-in", JOBS, "/healthz", "/static/x/base.css", "/nothing")
    for path, headers in itertools.product(paths, (PAGE, ADMIN)):
        refused = api.client.get(path, headers={"Host": "evil.example:8470", **headers})
        assert (refused.status_code, "--allowed-host" in refused.text) == (421, True), path
        assert refused.headers["x-content-type-options"] == "nosniff"
        own = api.client.get(path, headers={"Host": "trainyard.localhost:8470", **headers})
        assert own.status_code != 421, path


def test_change_by_another_site_is_refused_even_with_the_csrf_value(api: Server) -> None:
    admin = signed_in(api, "admin")
    api.create()
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://server:8471"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://server"},
    ):
        answer = call(api, "POST", CANCEL, admin, csrf(admin) | headers)
        assert (answer.status_code, answer.json()["error"]["status"]) == (403, "PERMISSION_DENIED"), headers
        assert "Cross-site request refused" in answer.text
    assert api.job()["state"] == "QUEUED"
    for headers in (
        {"Origin": "http://server"},
        {"Origin": "https://server"},  # a proxy with TLS in front of us
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://train.example.com"},
        {"Sec-Fetch-Site": "none"},
    ):
        assert call(api, "POST", CANCEL, admin, csrf(admin) | headers).status_code == 200, headers


def test_page_of_the_http_address_changes_nothing_over_https(api: Server) -> None:
    admin = signed_in(api, "admin")
    answers = [
        api.client.post(
            "https://server/sign-out", headers={"Cookie": f"__Host-trainyard-443={admin.value}", "Origin": origin}
        )
        for origin in ("http://server", "https://server")
    ]
    assert ["Cross-site" in answer.text for answer in answers] == [True, False]


def test_page_without_a_session_redirects_to_sign_in_and_nothing_else_does(api: Server) -> None:
    for path, to in (
        ("/", "/sign-in"),
        ("/projects/p/jobs/j", "/sign-in?next=/projects/p/jobs/j"),
        ("/x?state=FAILED&label=a%3Db", "/sign-in?next=/x%3Fstate%3DFAILED%26label%3Da%253Db"),
        ("//evil.example/x", "/sign-in?next=//evil.example/x"),  # which the sign-in page does not follow
    ):
        answer = api.client.get(f"http://server{path}", headers=PAGE)
        assert (answer.status_code, answer.headers["location"]) == (303, to)
    for path in (JOBS, "/trainyard/v1/status", "/agent/v1/sync", "/live/", "/upload/x"):
        assert api.client.get(path, headers=PAGE).status_code == 401, path
    assert api.client.get("/", headers=PAGE | {"Authorization": "Bearer wrong"}).status_code == 401
    assert api.client.post("/", headers=PAGE).status_code == 401


def test_every_response_has_the_security_headers(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ("/healthz", JOBS, "/nothing", f"{JOBS}/none", "/agent/v1/sync")
    for path, headers in itertools.product(paths, ({}, ADMIN)):
        _check_headers(api.client.get(path, headers=headers))

    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("trainyard_server.services.jobs.jobs.Jobs.get", broken)
    answer = api.client.get(f"{JOBS}/j", headers=ADMIN)
    assert answer.status_code == 500
    _check_headers(answer)


def _check_headers(answer: httpx.Response) -> None:
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; frame-ancestors 'none'")
    assert {
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "x-frame-options": "DENY",
        "cache-control": "no-store",
    }.items() <= dict(answer.headers).items()


def change(api: Server, job_id: str, who: dict[str, str]) -> tuple[int, int]:
    """Status codes of patching the labels, then cancelling."""
    patched = api.status("PATCH", f"{JOBS}/{job_id}?updateMask=labels", who, json={"labels": {"a": "b"}})
    return patched, api.status("POST", f"{JOBS}/{job_id}:cancel", who)


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
