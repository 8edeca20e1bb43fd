"""Service account keys: which signatures are worth what, and until when."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.auth import crypt, jwt

from trainyard_server.capabilities.google.ml_v1.grants import KEY_LIFETIME
from trainyard_server.capabilities.google.ml_v1.keys import TOKEN_LIFETIME, ServiceAccountKey, ServiceAccountKeys

NOW = datetime(2026, 11, 21, 15, 0, tzinfo=UTC)
KEYS = ServiceAccountKeys(b"key of the installation", "trainyard.localhost:8472")
KEY = KEYS.issue("made:alice", NOW)
OTHER = KEYS.issue("made:bob", NOW)
FOREIGN = ServiceAccountKeys(b"another", KEYS.domain).issue("made:alice", NOW)


def signed(key: ServiceAccountKey = KEY, key_id: str = "", **changes: Any) -> str:
    """A text that Google's library signs with a key; None removes a claim."""
    signer = crypt.RSASigner.from_string(key.private_key, key_id or key.key_id)  # type: ignore[no-untyped-call]
    claims = {"iat": NOW.timestamp(), "exp": (NOW + timedelta(hours=1)).timestamp(), **changes}
    sent = {name: value for name, value in claims.items() if value is not None}
    return str(jwt.encode(signer, sent).decode())  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "audience",
    [
        "https://oauth2.trainyard.localhost:8472/token",
        "https://oauth2.googleapis.com/token",
        "https://www.googleapis.com/oauth2/v4/token",
    ],
)
def test_assertion_is_exchanged_for_a_token_of_an_hour_and_is_no_bearer(audience: str) -> None:
    assertion = signed(aud=audience)
    grant = KEYS.read_assertion(assertion, NOW)
    assert grant is not None
    text, expires = KEYS.access_token(grant.credential, grant.number, grant.expires, NOW)
    assert expires == NOW + TOKEN_LIFETIME
    assert KEYS.read_bearer(text, NOW) is not None
    assert KEYS.read_bearer(text, expires) is None
    assert KEYS.read_bearer(assertion, NOW) is None


def _unsigned() -> str:
    parts = ({"alg": "none", "kid": KEY.key_id}, {"iat": NOW.timestamp(), "exp": NOW.timestamp() + 60})
    return ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


WORTHLESS: dict[str, Callable[[], str]] = {
    "another key": lambda: signed(OTHER, KEY.key_id),
    "changed id": lambda: signed(key_id=f"{KEY.key_id}A"),
    "another installation": lambda: signed(FOREIGN),
    "of the future": lambda: signed(iat=(NOW + timedelta(minutes=5)).timestamp()),
    "expired": lambda: signed(exp=(NOW - timedelta(minutes=5)).timestamp()),
    "of two hours": lambda: signed(exp=(NOW + timedelta(hours=2)).timestamp()),
    "without an end": lambda: signed(exp=None),
    "a time that is none": lambda: signed(iat="now"),
    "an endless time": lambda: signed(exp=float("inf")),
    "for Google": lambda: signed(aud="https://ml.googleapis.com/"),
    "without TLS": lambda: signed(aud="http://ml.trainyard.localhost:8472/"),
    "a list of audiences": lambda: signed(aud=["https://ml.trainyard.localhost:8472/"]),
    "too long": lambda: signed(scope="x" * 10_000),
    "changed signature": lambda: signed() + "A",
    "without a signature": _unsigned,
    "no access token": lambda: "trainyard_access.a.b.c",
    "an empty access token": lambda: "trainyard_access.",
    "dots": lambda: "..",
    "not ASCII": lambda: "\u00f6.\u00f6.\u00f6",
    "nothing": lambda: "",
}


@pytest.mark.parametrize("kind", WORTHLESS)
def test_what_no_key_of_ours_has_signed_for_this_moment_is_worth_nothing(kind: str) -> None:
    text = WORTHLESS[kind]()
    assert KEYS.read_bearer(text, NOW) is None
    assert KEYS.read_assertion(text, NOW) is None


def test_key_ends() -> None:
    later = NOW + KEY_LIFETIME
    times: dict[str, Any] = {"iat": later.timestamp(), "exp": (later + timedelta(hours=1)).timestamp()}
    assert KEYS.read_bearer(signed(**times), later - timedelta(seconds=1)) is not None
    assert KEYS.read_bearer(signed(**times), later) is None
