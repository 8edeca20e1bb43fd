"""Browsers: the session's cookie, what protects it from pages of other sites, and the headers of every answer."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from integration.api.api_support import ADMIN, TOKENS, Clock, Server, package_job, server
from trainyard_server.domain.permissions import Token
from trainyard_server.domain.sessions import LIFETIME, Session

JOBS = "/v1/projects/p/jobs"
CANCEL = f"{JOBS}/job:cancel"
PAGE = {"Accept": "text/html,application/xhtml+xml"}
BY_NAME: dict[str, Token] = {token.name: token for token in TOKENS}


def signed_in(api: Server, name: str) -> Session:
    return api.use_cases.sessions.open(BY_NAME[name], api.clock())


def call(
    api: Server, method: str, path: str, session: Session, headers: dict[str, str] | None = None, **given: Any
) -> httpx.Response:
    cookie = {"Cookie": f"other=1; trainyard-80={session.value}"}
    return api.client.request(method, path, headers=cookie | (headers or {}), **given)


def csrf(session: Session) -> dict[str, str]:
    return {"X-CSRF-Token": session.csrf}


def test_session_may_what_its_token_may(api: Server) -> None:
    alice, vera, admin = (signed_in(api, name) for name in ("alice", "vera", "admin"))
    body = {"jobId": "job", "trainingInput": package_job()}
    assert call(api, "POST", JOBS, vera, csrf(vera), json=body).status_code == 403
    assert call(api, "POST", JOBS, alice, csrf(alice), json=body).status_code == 200
    assert call(api, "GET", f"{JOBS}/job", vera).json()["jobId"] == "job"
    assert api.detail()["owner"] == "alice"
    assert call(api, "POST", "/trainyard/v1/health:mend", alice, csrf(alice)).status_code == 403
    assert call(api, "POST", "/trainyard/v1/health:mend", admin, csrf(admin)).status_code == 200
    assert call(api, "POST", "/agent/v1/sync", admin, csrf(admin)).status_code == 403


def test_session_that_is_over_is_401(api: Server, clock: Clock) -> None:
    vera = signed_in(api, "vera")
    clock.advance(LIFETIME.total_seconds())
    answer = call(api, "GET", JOBS, vera)
    assert (answer.status_code, answer.json()["error"]["status"]) == (401, "UNAUTHENTICATED")


def test_session_outlives_the_server_and_not_its_token(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock) as before:
        vera = signed_in(before, "vera")
    with server(tmp_path, clock) as after:
        assert call(after, "GET", JOBS, vera).status_code == 200
    others = tuple(token for token in TOKENS if token.name != "vera")
    changed = (*others, Token(BY_NAME["vera"].role, "vera", "another"))
    with server(tmp_path, clock, tokens=changed) as later:
        assert call(later, "GET", JOBS, vera).status_code == 401


def test_session_in_use_gets_more_time(api: Server, clock: Clock) -> None:
    vera = signed_in(api, "vera")
    assert "set-cookie" not in call(api, "GET", JOBS, vera).headers
    clock.advance(LIFETIME.total_seconds() / 2)
    line = call(api, "GET", JOBS, vera).headers["set-cookie"]
    assert line.startswith("trainyard-80=")
    assert line.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax")
    clock.advance(LIFETIME.total_seconds() - 1)
    assert api.client.get(JOBS, headers={"Cookie": line.partition(";")[0]}).status_code == 200


def test_token_that_is_shown_counts_before_the_session(api: Server) -> None:
    vera = signed_in(api, "vera")
    assert call(api, "GET", JOBS, vera, {"Authorization": "Bearer wrong"}).status_code == 401
    basic = {"Authorization": "Basic YTpi"}  # that of a proxy in front of us
    assert call(api, "GET", JOBS, vera, basic).status_code == 200


def test_cookie_of_another_port_is_not_ours(api: Server) -> None:
    vera = signed_in(api, "vera")
    answer = call(api, "GET", JOBS, vera, {"Host": "server:8471"})
    assert answer.status_code == 401


@pytest.mark.parametrize("said", [None, "", "wrong", "bobs"])
def test_change_that_no_page_of_ours_asked_for_is_refused(api: Server, said: str | None) -> None:
    api.create()
    admin = signed_in(api, "admin")
    token = signed_in(api, "bob").csrf if said == "bobs" else said
    answer = call(api, "POST", CANCEL, admin, {"X-CSRF-Token": token} if token is not None else {})
    assert (answer.status_code, answer.json()["error"]["status"]) == (403, "PERMISSION_DENIED")
    assert api.job()["state"] == "QUEUED"


def test_form_may_say_it_in_a_field_and_its_body_still_arrives(api: Server) -> None:
    api.create()
    admin = signed_in(api, "admin")
    assert call(api, "POST", CANCEL, admin, data={"csrf": "wrong"}).status_code == 403
    assert call(api, "POST", CANCEL, admin, data={"csrf": admin.csrf}).status_code == 200
    answer = call(api, "POST", JOBS, admin, data={"csrf": admin.csrf, "x": "y"})
    assert answer.status_code == 400
    assert "Invalid JSON payload" in answer.text  # the route has read the form as what it takes: JSON


def test_form_that_is_endless_is_refused(api: Server) -> None:
    admin = signed_in(api, "admin")
    answer = call(api, "POST", CANCEL, admin, data={"csrf": admin.csrf, "x": "y" * 2**20})
    assert answer.status_code == 413


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "application/json"])
def test_field_counts_in_a_form_alone(api: Server, kind: str) -> None:
    admin = signed_in(api, "admin")
    answer = call(api, "POST", CANCEL, admin, {"Content-Type": kind}, content=f"csrf={admin.csrf}")
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://server:8471"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://server"},
    ],
)
def test_page_of_another_site_changes_nothing_even_if_it_knew_all(
    api: Server, headers: dict[str, str]
) -> None:
    api.create()
    admin = signed_in(api, "admin")
    answer = call(api, "POST", CANCEL, admin, csrf(admin) | headers)
    assert (answer.status_code, answer.json()["error"]["status"]) == (403, "PERMISSION_DENIED")
    assert "A page of another site" in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://server"},
        {"Origin": "https://server"},  # a proxy with TLS in front of us
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://train.example.com"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_page_of_ours_may(api: Server, headers: dict[str, str]) -> None:
    api.create()
    admin = signed_in(api, "admin")
    assert call(api, "POST", CANCEL, admin, csrf(admin) | headers).status_code == 200


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("/", "/sign-in"),
        ("/projects/p/jobs/j", "/sign-in?next=/projects/p/jobs/j"),
        ("/x?state=FAILED&label=a%3Db", "/sign-in?next=/x%3Fstate%3DFAILED%26label%3Da%253Db"),
        ("//evil.example/x", "/sign-in?next=//evil.example/x"),  # which the sign-in page does not follow
    ],
)
def test_who_opens_a_page_without_a_session_is_sent_to_sign_in(api: Server, path: str, to: str) -> None:
    answer = api.client.get(f"http://server{path}", headers=PAGE)
    assert (answer.status_code, answer.headers["location"]) == (303, to)


@pytest.mark.parametrize("path", [JOBS, "/trainyard/v1/status", "/agent/v1/sync", "/live/", "/upload/x"])
def test_call_of_a_program_is_never_sent_to_sign_in(api: Server, path: str) -> None:
    assert api.client.get(path, headers=PAGE).status_code == 401


def test_wrong_token_and_what_changes_something_are_never_sent_to_sign_in(api: Server) -> None:
    assert api.client.get("/", headers=PAGE | {"Authorization": "Bearer wrong"}).status_code == 401
    assert api.client.post("/", headers=PAGE).status_code == 401


@pytest.mark.parametrize("path", ["/healthz", JOBS, "/nothing", f"{JOBS}/none", "/agent/v1/sync"])
@pytest.mark.parametrize("headers", [{}, ADMIN])
def test_every_answer_tells_the_browser_what_it_may_do(
    api: Server, path: str, headers: dict[str, str]
) -> None:
    _check_headers(api.client.get(path, headers=headers))


def test_error_of_ours_tells_it_as_well(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("trainyard_server.services.jobs.Jobs.get", broken)
    answer = api.client.get(f"{JOBS}/j", headers=ADMIN)
    assert answer.status_code == 500
    _check_headers(answer)


def _check_headers(answer: httpx.Response) -> None:
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; frame-ancestors 'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cache-control"] == "no-store"


def test_websocket_is_closed(api: Server) -> None:
    sent = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "path": "/", "headers": [], "query_string": b"", "subprotocols": []}
    api.client.run(api.app, scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
