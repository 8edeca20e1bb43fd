"""Sign-in by OpenID Connect: one attempt in a browser, and what an ID token must say. Pure.

The authorization code flow with PKCE (OpenID Connect Core 1.0, section 3.1; RFC 7636). Callers pass the time.
"""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from itsdangerous import BadData, URLSafeSerializer

from trainyard_protocol.errors import Unauthenticated
from trainyard_server.domain.access.permissions import NAME_RULE, is_name

SCOPE = "openid email profile"
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
"""Signatures of ID tokens: with a public key. `none` and those with a shared secret are not accepted."""

ATTEMPT_LIFETIME = timedelta(minutes=10)
"""Time to sign in at the issuer."""

_SKEW = timedelta(minutes=1)
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Attempt:
    """A sign-in that has begun in a browser. `state` and `nonce` tie the issuer's answer to it, `verifier` its code."""

    next_path: str
    expires: float  # seconds since 1970
    state: str = field(default_factory=lambda: secrets.token_urlsafe(_SECRET_BYTES))
    nonce: str = field(default_factory=lambda: secrets.token_urlsafe(_SECRET_BYTES))
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(_SECRET_BYTES), repr=False)

    @property
    def challenge(self) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return urlsafe_b64encode(digest).decode().rstrip("=")

    def is_state(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.state.encode())


class Attempts:
    """Attempts as cookies of their browsers, signed with the key of the installation: no server stores them."""

    def __init__(self, key: bytes) -> None:
        self._serializer = URLSafeSerializer(
            key, "trainyard oidc", signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256}
        )

    def begin(self, next_path: str, now: datetime) -> Attempt:
        return Attempt(next_path, (now + ATTEMPT_LIFETIME).timestamp())

    def cookie_of(self, attempt: Attempt) -> str:
        return str(self._serializer.dumps(asdict(attempt)))

    def read(self, value: str, now: datetime) -> Attempt | None:
        """The attempt of a cookie. None if it has expired or this key has not signed it."""
        try:
            attempt = Attempt(**self._serializer.loads(value))
        except (BadData, TypeError, ValueError):
            return None
        return attempt if now.timestamp() < attempt.expires else None


def authorization_url(endpoint: str, client_id: str, redirect_url: str, attempt: Attempt) -> str:
    """The address of the issuer's sign-in page for the attempt."""
    query = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": redirect_url,
        "scope": SCOPE,
        "state": attempt.state,
        "nonce": attempt.nonce,
        "code_challenge": attempt.challenge,
        "code_challenge_method": "S256",
    }
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"


def check_claims(claims: Mapping[str, Any], issuer: str, client_id: str, attempt: Attempt, now: datetime) -> None:
    """Check the claims of an ID token with a valid signature (OpenID Connect Core 1.0, section 3.1.3.7).

    Raises Unauthenticated.
    """
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, Sequence) and not isinstance(audience, str) else [audience]
    party = claims.get("azp", client_id if len(audiences) == 1 else None)
    nonce = claims.get("nonce")
    checks = {
        "it is from another issuer (iss)": claims.get("iss") == issuer,
        "it is for another client (aud)": client_id in audiences and party == client_id,
        "it has expired (exp)": now - _SKEW < _time(claims, "exp"),
        "it is from the future (iat)": _time(claims, "iat") <= now + _SKEW,
        "it is not valid yet (nbf)": "nbf" not in claims or _time(claims, "nbf") <= now + _SKEW,
        "it is of another sign-in (nonce)": isinstance(nonce, str)
        and hmac.compare_digest(nonce.encode("utf-8", "replace"), attempt.nonce.encode()),
    }
    wrong = [reason for reason, right in checks.items() if not right]
    if wrong:
        raise Unauthenticated(f"The issuer's ID token cannot be used: {wrong[0]}. Sign in again.")


def name_of(claims: Mapping[str, Any], claim: str) -> str:
    """The name of the person in an ID token. Raises Unauthenticated if it has none that can be used."""
    name = claims.get(claim)
    if name is None:
        raise Unauthenticated(
            f"The issuer's ID token has no {claim}. The operator of this server selects another claim with "
            "--oidc-name-claim, or lets the issuer add it to ID tokens."
        )
    if claim == "email" and claims.get("email_verified") is not True:
        raise Unauthenticated(
            "The issuer has not verified your email address (email_verified), so it cannot be your name here."
        )
    if not isinstance(name, str) or not is_name(name):
        raise Unauthenticated(f"The {claim} of your account cannot be a name here: {NAME_RULE}.")
    return name


def _time(claims: Mapping[str, Any], claim: str) -> datetime:
    """A time of the token. Raises Unauthenticated."""
    value = claims.get(claim)
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    raise Unauthenticated(f"The issuer's ID token cannot be used: its {claim} is not a time.")
