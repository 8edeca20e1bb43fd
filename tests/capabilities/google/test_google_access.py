"""Access of Google's clients: keys of service accounts, and the token endpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.auth import crypt, jwt

from integration.api.api_support import ALICE, BOB, Clock, Server, server
from trainyard_server.capabilities.google.ml_v1.grants import GRANT_TYPE
from trainyard_server.services.people.guess_limits import PER_MINUTE

DOMAIN = "trainyard.localhost:8472"
KEYS = "/trainyard/v1/google-keys"
ME = "/trainyard/v1/me"


@pytest.fixture
def api(tmp_path: Path, clock: Clock) -> Iterator[Server]:
    with server(tmp_path, clock, google_domain=DOMAIN, google_ca="-----BEGIN ...") as one:
        yield one


def key_of(api: Server, who: dict[str, str]) -> dict[str, Any]:
    return dict(api.done("POST", KEYS, who))


def signed(api: Server, key: dict[str, Any], **claims: Any) -> str:
    signer = crypt.RSASigner.from_string(key["private_key"], key["key_id"])  # type: ignore[no-untyped-call]
    now = api.clock().timestamp()
    given = {"iss": key["email"], "iat": now, "exp": now + 3600, **claims}
    return str(jwt.encode(signer, given).decode())  # type: ignore[no-untyped-call]


def exchanged(api: Server, assertion: str, grant_type: str = GRANT_TYPE) -> httpx.Response:
    return api.client.post("/token", data={"grant_type": grant_type, "assertion": assertion})


def access(api: Server, key: dict[str, Any], lasts_s: int = 3600) -> dict[str, str]:
    answer = exchanged(api, signed(api, key, aud=key["token_uri"]))
    assert answer.json()["expires_in"] == lasts_s
    assert answer.headers["cache-control"] == "no-store"
    return {"Authorization": f"Bearer {answer.json()['access_token']}"}


def test_key_has_the_rights_of_its_token_and_no_more(api: Server) -> None:
    key = key_of(api, ALICE)
    assert (key["domain"], key["token_uri"]) == (DOMAIN, f"https://oauth2.{DOMAIN}/token")
    bearer = {"Authorization": f"Bearer {signed(api, key, scope='https://www.googleapis.com/auth/x')}"}
    for headers in (access(api, key), bearer):
        assert api.done("GET", ME, headers) == api.done("GET", ME, ALICE)
        assert api.status("GET", "/trainyard/v1/tokens?all=true", headers) == 403
        assert api.status("POST", KEYS, headers) == 401  # a key makes no keys
        assert api.client.post("/sign-in", data={"token": headers["Authorization"][7:]}).status_code == 401


def test_key_ends_with_the_token_that_it_was_made_for(api: Server) -> None:
    token_id, made = api.token(expires_in_s=600)
    headers = access(api, key_of(api, made), lasts_s=600)
    assert api.status("GET", ME, headers) == 200
    api.done("DELETE", f"/trainyard/v1/tokens/{token_id}")
    assert api.status("GET", ME, headers) == 401


def test_revoked_key_ends_at_once_and_others_go_on(api: Server) -> None:
    key, other = key_of(api, ALICE), key_of(api, ALICE)
    headers, others = access(api, key), access(api, other)
    for who, status in ((BOB, 200), (ALICE, 401)):  # it is not bob's: no effect
        api.done("DELETE", f"{KEYS}/{key['number']}", who)
        assert api.status("GET", ME, headers) == status
    refused = exchanged(api, signed(api, key, aud=key["token_uri"]))
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")
    assert api.status("GET", ME, others) == 200


def test_token_endpoint_refuses_what_it_does_not_know_and_limits_guesses(api: Server) -> None:
    key = key_of(api, ALICE)
    assertion = signed(api, key, aud=key["token_uri"])
    assert exchanged(api, assertion, "refresh_token").json()["error"] == "unsupported_grant_type"
    for _ in range(PER_MINUTE):
        assert exchanged(api, f"{assertion[:-4]}AAAA").json()["error"] == "invalid_grant"
    assert exchanged(api, f"{assertion[:-4]}AAAA").status_code == 429
    assert exchanged(api, assertion).status_code == 200  # the right one is accepted at any time
    assert api.client.post("/token", content=b"x" * 70_000).status_code == 413
