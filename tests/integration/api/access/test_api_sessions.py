"""Browser sessions: cookies, CSRF protection and security headers."""

import itertools
from typing import Any

import httpx
import pytest

from integration.api.api_support import ADMIN, TOKENS, Clock, Server
from trainyard_server.domain.access.permissions import Token
from trainyard_server.domain.access.sessions import LIFETIME, Session

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


def test_used_session_is_renewed(api: Server, clock: Clock) -> None:
    vera = signed_in(api, "vera")
    assert "set-cookie" not in call(api, "GET", JOBS, vera).headers
    clock.advance(LIFETIME.total_seconds() / 2)
    line = call(api, "GET", JOBS, vera).headers["set-cookie"]
    assert line.startswith("trainyard-80=")
    assert line.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax")
    clock.advance(LIFETIME.total_seconds() - 1)
    assert api.client.get(JOBS, headers={"Cookie": line.partition(";")[0]}).status_code == 200


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


def test_websocket_without_a_token_is_refused(api: Server) -> None:
    sent = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    path, headers = "/trainyard/v1/attachments/x/streams/0", [(b"host", b"server")]
    scope = {"type": "websocket", "path": path, "headers": headers, "query_string": b"", "subprotocols": []}
    api.client.run(api.app, scope, receive, send)
    assert (sent[0]["type"], sent[0]["status"]) == ("websocket.http.response.start", 401)
