"""Who may call what, and that every refusal is the one envelope."""

from pathlib import Path

import pytest

from integration.api.api_support import ADMIN, AGENT, Clock, Server, server

ADMIN_PATHS = ("/v1/projects/p/jobs", "/trainyard/v1/status", "/upload/x")
AGENT_PATHS = ("/agent/v1/sync", f"/agent/v1/staging/{'0' * 64}/x.whl")


def test_healthz_needs_no_token(api: Server) -> None:
    answer = api.client.get("/healthz")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")  # it has no agent yet


@pytest.mark.parametrize("path", [*ADMIN_PATHS, *AGENT_PATHS, "/", "/nothing", "/docs", "/openapi.json"])
@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YQ=="}, {"Authorization": "Bearer "}],
)
def test_call_without_a_good_token_is_401(api: Server, path: str, headers: dict[str, str]) -> None:
    answer = api.client.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["status"] == "UNAUTHENTICATED"
    assert answer.headers["www-authenticate"] == 'Bearer realm="trainyard"'


@pytest.mark.parametrize("path", ADMIN_PATHS)
def test_agent_token_on_an_admin_path_is_403(api: Server, path: str) -> None:
    answer = api.client.get(path, headers=AGENT)
    assert (answer.status_code, answer.json()["error"]["status"]) == (403, "PERMISSION_DENIED")


@pytest.mark.parametrize("path", AGENT_PATHS)
def test_admin_token_on_an_agent_path_is_403(api: Server, path: str) -> None:
    answer = api.client.get(path, headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["status"]) == (403, "PERMISSION_DENIED")


def test_server_without_tokens_lets_nobody_in(tmp_path: Path, clock: Clock) -> None:
    with server(tmp_path, clock, tokens={}) as api:
        assert api.client.get("/v1/projects/p/jobs", headers=ADMIN).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "code", "status"),
    [
        ("GET", "/v1/nothing", 404, "NOT_FOUND"),
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("DELETE", "/v1/projects/p/jobs/j", 405, "UNIMPLEMENTED"),
        ("GET", "/trainyard/v1/projects/p/jobs/none", 404, "NOT_FOUND"),
        ("GET", "/trainyard/v1/projects/p/jobs/none/logs", 404, "NOT_FOUND"),
        ("GET", "/trainyard/v1/projects/p/jobs/none/explain", 404, "NOT_FOUND"),
        ("GET", "/trainyard/v1/projects/p/jobs/none/explain?run=x", 400, "INVALID_ARGUMENT"),
    ],
)
def test_error_is_always_the_envelope(api: Server, method: str, path: str, code: int, status: str) -> None:
    answer = api.client.request(method, path, headers=ADMIN)
    assert answer.status_code == code
    error = answer.json()["error"]
    assert (error["code"], error["status"]) == (code, status)
    assert error["message"]


def test_unexpected_error_is_500_and_tells_nothing_of_the_inside(
    api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr("trainyard_server.jobs.Jobs.get", broken)
    answer = api.client.get("/v1/projects/p/jobs/j", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["status"]) == (500, "INTERNAL")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


def test_disk_that_is_full_is_503(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainyard_server.jobs.Jobs.get", full)
    answer = api.client.get("/v1/projects/p/jobs/j", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["status"]) == (503, "UNAVAILABLE")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/agent/v1/sync", b"{}"),
        ("/agent/v1/sync", b"nonsense"),
        ("/agent/v1/runs/r/replicas/master-replica-0/logs", b'{"start": "x"}'),
    ],
)
def test_agents_message_that_is_wrong_is_400(api: Server, path: str, body: bytes) -> None:
    answer = api.client.post(path, content=body, headers=AGENT)
    assert (answer.status_code, answer.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
