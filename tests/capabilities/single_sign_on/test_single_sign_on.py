"""Sign-in to the dashboard by OpenID Connect, with an issuer on loopback."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.jwk import OctKey, RSAKey

from capabilities.single_sign_on.issuer import CLIENT, SECRET, Issuer, issuing
from integration.api.api_support import START, Clock, Server, server
from trainyard_server.capabilities.single_sign_on.options import OidcOptions

BEGIN = "/sign-in/oidc"
METADATA = "/.well-known/openid-configuration"
DAY_S = 86400.0


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing(START.timestamp()) as one:
        yield one


@pytest.fixture
def signing(tmp_path: Path, clock: Clock, issuer: Issuer) -> Iterator[Server]:
    with server(tmp_path / "server", clock, options=(options(issuer),)) as api:
        yield api


def options(issuer: Issuer, **given: str) -> OidcOptions:
    return OidcOptions(issuer.url, CLIENT, "http://localhost:8470", **({"client_secret": SECRET} | given))


def attempt_of(answer: httpx.Response) -> dict[str, str]:
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


def begin(api: Server, issuer: Issuer, path: str = "/") -> tuple[str, dict[str, str]]:
    """The path that the issuer sends the browser back to, and the cookie of the attempt."""
    answer = api.client.get(BEGIN, params={"next": path})
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"].startswith(f"{issuer.url}/authorize?tenant=1&response_type=code")
    back = urlsplit(issuer.authorize(answer.headers["location"]))
    return f"{back.path}?{back.query}", attempt_of(answer)


def sign_in(api: Server, issuer: Issuer, path: str = "/") -> httpx.Response:
    back, attempt = begin(api, issuer, path)
    return api.client.get(back, headers=attempt)


def session_of(answer: httpx.Response) -> dict[str, str]:
    """The cookie of the session; the other one deletes the attempt's."""
    assert answer.status_code == 303, answer.text
    lines = answer.headers.get_list("set-cookie")
    (session,) = [line for line in lines if "-oidc=" not in line]
    assert [line.partition("=")[2][:1] for line in lines if "-oidc=" in line] == [";"]
    return {"Cookie": session.partition(";")[0]}


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_person_of_the_issuer_has_the_roles_of_that_name(signing: Server, issuer: Issuer, algorithm: str) -> None:
    issuer.rotate(algorithm)
    page = signing.client.get("/sign-in", params={"next": "/cluster?a=1"})
    host = urlsplit(issuer.url).netloc
    assert f'href="/sign-in/oidc?next=/cluster%3Fa%3D1">Sign in with {host}<' in page.text
    answer = sign_in(signing, issuer, "/cluster?a=1")
    assert answer.headers["location"] == "/cluster?a=1"
    session = session_of(answer)
    me = "/trainyard/v1/me"
    assert signing.client.get(me, headers=session).json() == {"role": "", "name": "carl@example.com", "projects": {}}
    signing.set_role("carl@example.com", "viewer")
    assert signing.client.get(me, headers=session).json()["projects"] == {"p": "viewer"}
    page = signing.client.get("/tokens", headers=session)
    assert ("viewer of p" in page.text, "carl@example.com" in page.text) == (True, True)
    entry = signing.get("/trainyard/v1/audit", action="sign-in")["entries"][0]
    found = [entry[name] for name in ("actor", "outcome", "credential")]
    assert found == ["carl@example.com", "done", "single-sign-on"]


def test_session_of_the_issuer_ends_after_half_a_day(signing: Server, issuer: Issuer, clock: Clock) -> None:
    session = session_of(sign_in(signing, issuer))
    clock.advance(DAY_S / 2 - 1)
    answer = signing.client.get("/cluster", headers=session)
    assert (answer.status_code, answer.headers.get("set-cookie")) == (200, None), "not renewed"
    clock.advance(1)
    assert signing.client.get("/trainyard/v1/me", headers=session).status_code == 401


def test_issuers_answer_is_of_the_browser_that_asked(signing: Server, issuer: Issuer, clock: Clock) -> None:
    back, attempt = begin(signing, issuer)
    _, other = begin(signing, issuer)
    for headers in ({}, other, {"Cookie": attempt["Cookie"] + "x"}):
        answer = signing.client.get(back, headers=headers)
        assert (answer.status_code, "not begun in this browser" in answer.text) == (401, True)
    clock.advance(600)
    assert signing.client.get(back, headers=attempt).status_code == 401
    assert "/token" not in issuer.calls, "nobody asked the issuer about them"


def test_answer_counts_once_and_a_link_of_another_site_begins_nothing(signing: Server, issuer: Issuer) -> None:
    back, attempt = begin(signing, issuer)
    session_of(signing.client.get(back, headers=attempt))
    answer = signing.client.get(back, headers=attempt)
    assert (answer.status_code, "it was used before" in answer.text) == (401, True)
    answer = signing.client.get(BEGIN, headers={"Sec-Fetch-Site": "cross-site"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert "set-cookie" not in answer.headers


def test_path_of_another_server_is_not_gone_on_to(signing: Server, issuer: Issuer) -> None:
    for path in ("//evil.example", "https://evil.example", BEGIN, "/sign-in/oidc/callback?code=1"):
        assert sign_in(signing, issuer, path).headers["location"] == "/"


SPOILT: list[tuple[dict[str, Any], str]] = [
    ({"iss": "https://evil.example"}, "from another issuer"),
    ({"aud": "another"}, "for another client"),
    ({"aud": [CLIENT, "another"]}, "for another client"),
    ({"aud": [CLIENT, "another"], "azp": "another"}, "for another client"),
    ({"azp": "another"}, "for another client"),
    ({"aud": None}, "for another client"),
    ({"exp": int(START.timestamp()) - 61}, "it has expired"),
    ({"exp": None}, "its exp is not a time"),
    ({"exp": 1e300}, "its exp is not a time"),
    ({"iat": int(START.timestamp()) + 61}, "from the future"),
    ({"nbf": int(START.timestamp()) + 61}, "not valid yet"),
    ({"nbf": "soon"}, "its nbf is not a time"),
    ({"nbf": None}, "its nbf is not a time"),
    ({"nonce": "another"}, "of another sign-in"),
    ({"nonce": None}, "of another sign-in"),
    ({"email": None}, "has no email"),
    ({"email": 7}, "cannot be a name here"),
    ({"email": "a b@example.com"}, "cannot be a name here"),
    ({"email": "x" * 129}, "cannot be a name here"),
    ({"email_verified": False}, "has not verified your email"),
    ({"email_verified": "true"}, "has not verified your email"),
    ({"email_verified": None}, "has not verified your email"),
]
"""Claims of an ID token that opens no session, and why."""


def test_id_token_must_be_for_this_sign_in(signing: Server, issuer: Issuer) -> None:
    for spoil, reason in SPOILT:
        issuer.spoil = spoil
        answer = sign_in(signing, issuer)
        assert answer.status_code in (401, 429), "the last ones are one guess too many"
        assert reason in answer.text, spoil
        assert [line for line in answer.headers.get_list("set-cookie") if "-oidc=" not in line] == []


def test_id_token_is_signed_by_a_key_of_the_issuer(signing: Server, issuer: Issuer) -> None:
    """Unsigned, with a shared secret, by a stranger's key, by a stranger's key under the issuer's key id."""
    public = issuer.keys["key"].as_pem(private=False)
    stranger = RSAKey.generate_key(2048)
    forged: list[tuple[dict[str, Any], Any]] = [
        ({"alg": "HS256"}, OctKey.import_key(SECRET)),
        ({"alg": "HS256"}, OctKey.import_key(public.replace(b"-----", b"     "))),
        ({"alg": "RS384", "kid": "another"}, stranger),
        ({"alg": "RS384"}, stranger),
    ]
    for headers, key in forged:
        issuer.headers, issuer.keys["other"] = headers, key
        answer = sign_in(signing, issuer)
        assert (answer.status_code, "signature is not by a key" in answer.text) == (401, True), headers
    for token in ("", "x", "a.b.c", "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0."):
        issuer.answers["/token"] = (200, {"id_token": token})
        assert sign_in(signing, issuer).status_code == 401, token


def test_answer_of_the_issuer_without_an_id_token_signs_nobody_in(signing: Server, issuer: Issuer) -> None:
    tokens: list[Any] = [None, 7, ["a.b.c"], {}]
    answers: list[Any] = [{}, *({"id_token": token} for token in tokens), [], 7]
    for answer in answers:
        issuer.answers["/token"] = (200, answer)
        page = sign_in(signing, issuer)
        assert (page.status_code, "gave no ID token" in page.text) == (401, True), answer


def test_new_key_of_the_issuer_is_looked_up(signing: Server, issuer: Issuer, clock: Clock) -> None:
    session_of(sign_in(signing, issuer))
    session_of(sign_in(signing, issuer))
    assert issuer.calls.count("/keys") == 1
    issuer.rotate("RS256")
    assert sign_in(signing, issuer).status_code == 401, "unknown keys make no more than a call a minute"
    clock.advance(60)
    issuer.now += 60
    session_of(sign_in(signing, issuer))
    assert (issuer.calls.count("/keys"), issuer.calls.count(METADATA)) == (2, 1)


FAILURES: list[tuple[str, tuple[int, Any], str]] = [
    (METADATA, (200, {"issuer": "https://evil.example"}), "it calls itself"),
    (METADATA, (200, b"[" * 100_000), "it calls itself None"),
    (METADATA, (200, b" " * 2**21), "it calls itself None"),
    (METADATA, (404, {}), "answered 404"),
    (METADATA, (302, {}), "answered 302"),
    ("/token", (500, b"<html>"), "token endpoint answered 500"),
    ("/token", (401, {"error": "invalid_client"}), "answered 401 (&#39;invalid_client&#39;)"),
    ("/keys", (200, {"keys": 7}), "its keys cannot be read"),
    ("/keys", (200, {"keys": [{"kty": "RSA", "n": "!", "e": 1}]}), "its keys cannot be read"),
]
"""Answers of an issuer, and what people read of them."""


def test_issuer_that_fails_is_named(signing: Server, issuer: Issuer, clock: Clock) -> None:
    for path, answer, reason in FAILURES:
        clock.advance(3600)  # what was read before is read anew
        url, attempt = (BEGIN, {}) if path == METADATA else begin(signing, issuer)
        issuer.answers = {path: answer}
        page = signing.client.get(url, headers=attempt)
        issuer.answers = {}
        assert (page.status_code, reason in page.text) == (503, True), reason


def test_refusal_of_the_issuer_is_in_our_own_words(signing: Server, issuer: Issuer) -> None:
    back, attempt = begin(signing, issuer)
    state = parse_qs(urlsplit(back).query)["state"][0]
    for error, shown in {"access_denied": "access was denied", "<b>": "refused the sign-in"}.items():
        query = {"state": state, "error": error, "error_description": "Call 555-1234"}
        page = signing.client.get(f"{BEGIN}/callback", params=query, headers=attempt)
        assert (page.status_code, shown in page.text, "555" in page.text) == (401, True, False)


def test_public_client_needs_no_secret(tmp_path: Path, clock: Clock, issuer: Issuer) -> None:
    issuer.public = True
    issuer.account = {"preferred_username": "carl"}
    issuer.spoil = {"nbf": int(START.timestamp()) + 60}  # valid: clocks differ
    given = options(issuer, client_secret="", name_claim="preferred_username")
    with server(tmp_path / "server", clock, options=(given,)) as api:
        session = session_of(sign_in(api, issuer))
        assert api.client.get("/trainyard/v1/me", headers=session).json()["name"] == "carl"
