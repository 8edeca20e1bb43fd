"""Service account keys for Google's clients, and what they are exchanged for. Pure; callers pass the time.

A key is an RSA key pair of which the server keeps nothing: the id that the client sends with each signature is a
statement, signed by this installation, of the public key, the credential that the key was made for, and its end. So a
key is worth what its credential is worth now. A client signs either an assertion that it exchanges for an access token
(RFC 7523), or the bearer of a call itself (https://google.aip.dev/auth/4111).
"""

import hashlib
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from itsdangerous import BadSignature, Signer
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey
from joserfc.jws import JWSRegistry

from trainyard_protocol.answers.people import TOKEN_PREFIX
from trainyard_server.capabilities.google.ml_v1.grants import KEY_LIFETIME
from trainyard_server.domain.access.grants import CredentialGrant
from trainyard_server.domain.access.route_access import TOKEN_PATHS

TOKEN_LIFETIME = timedelta(hours=1)
"""Lifetime of an access token, and the longest of an assertion."""

_GOOGLES_TOKEN_URIS = ("https://oauth2.googleapis.com/token", "https://www.googleapis.com/oauth2/v4/token")
_ACCESS_PREFIX = f"{TOKEN_PREFIX}access."
_LONGEST = 8192
_RSA_BITS = 2048
_ID_BYTES = 9
_SKEW = timedelta(minutes=1)
_UNREADABLE = (BadSignature, JoseError, ValueError, TypeError, KeyError, OverflowError, OSError)


class _Headers(JWSRegistry):
    max_header_length = 2048  # the id of a key has its public half in it


@dataclass(frozen=True, slots=True)
class ServiceAccountKey:
    """A new key. `key_id` is what signatures name it by, `number` what it is revoked by."""

    number: str
    key_id: str
    private_key: str = field(repr=False)
    expires: datetime


class ServiceAccountKeys:
    """Makes and reads keys, signed with the key of the installation. `domain` is the universe domain of the clients."""

    issuer = ""

    def __init__(self, key: bytes, domain: str) -> None:
        self._key = key
        self.domain = domain

    @property
    def token_uri(self) -> str:
        return f"https://oauth2.{self.domain}{TOKEN_PATHS[0]}"

    def issue(self, credential: str, now: datetime) -> ServiceAccountKey:
        pair = rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS)
        public = pair.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        private = pair.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        number, expires = secrets.token_hex(_ID_BYTES), now + KEY_LIFETIME
        key_id = self._sign("google key", credential, number, _seconds(expires), public)
        return ServiceAccountKey(number, key_id, private.decode(), expires)

    def read_assertion(self, text: str, now: datetime) -> CredentialGrant | None:
        """The grant of an assertion that is meant for the token endpoint; None if it is not valid."""
        return self._verified(text, now, self._is_token_endpoint, lasts=False)

    def read_bearer(self, text: str, now: datetime) -> CredentialGrant | None:
        """The grant of an access token, or of a call that a key has signed itself; None if it is not valid."""
        if not text.startswith(_ACCESS_PREFIX):
            return self._verified(text, now, self._is_service, lasts=True)
        try:
            credential, number, expires = self._unsign("google access", text.removeprefix(_ACCESS_PREFIX))
            grant = CredentialGrant(credential.decode(), number.decode(), _time(expires))
        except _UNREADABLE:
            return None
        return grant if now < grant.expires else None

    def access_token(self, credential: str, number: str, until: datetime | None, now: datetime) -> tuple[str, datetime]:
        """An access token for a credential, and its end: not after `until`."""
        expires = min(until or now + TOKEN_LIFETIME, now + TOKEN_LIFETIME)
        signed = self._sign("google access", credential, number, _seconds(expires))
        return _ACCESS_PREFIX + signed, _time(_seconds(expires).encode())

    def _verified(
        self, text: str, now: datetime, is_audience: Callable[[object], bool], *, lasts: bool
    ) -> CredentialGrant | None:
        """`lasts`: the grant ends with the signed text, else with the key."""
        try:
            key_id = _header(text)["kid"]
            credential, number, expires, public = self._unsign("google key", key_id)
            key_expires = _time(expires)
            key = serialization.load_der_public_key(public)
            pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
            claims = jwt.decode(text, RSAKey.import_key(pem), registry=_Headers(algorithms=["RS256"])).claims
            issued, ends = _claimed(claims, "iat"), _claimed(claims, "exp")
        except _UNREADABLE:
            return None
        until = min(ends + _SKEW, key_expires)
        end = until if lasts else key_expires
        if not issued - _SKEW <= now < until or ends - issued > TOKEN_LIFETIME:
            return None
        return CredentialGrant(credential.decode(), number.decode(), end) if is_audience(claims.get("aud")) else None

    def _is_token_endpoint(self, audience: object) -> bool:
        return audience in (self.token_uri, *_GOOGLES_TOKEN_URIS)

    def _is_service(self, audience: object) -> bool:
        """A client that names scopes gives no audience, another the address of a service."""
        if audience is None:
            return True
        if not isinstance(audience, str) or self._is_token_endpoint(audience):
            return False
        address = urlsplit(audience)
        return address.scheme == "https" and address.netloc.endswith(f".{self.domain}")

    def _sign(self, purpose: str, *parts: bytes | str) -> str:
        encoded = (urlsafe_b64encode(part if isinstance(part, bytes) else part.encode()).decode() for part in parts)
        return self._signer(purpose).sign(".".join(encoded)).decode()

    def _unsign(self, purpose: str, text: str) -> list[bytes]:
        """The signed parts. Raises BadSignature, ValueError."""
        return [urlsafe_b64decode(part) for part in self._signer(purpose).unsign(text).split(b".")]

    def _signer(self, purpose: str) -> Signer:
        return Signer(self._key, f"trainyard {purpose}", key_derivation="hmac", digest_method=hashlib.sha256)


def _header(text: str) -> Mapping[str, Any]:
    """The header of a JWT, which nothing has verified. Raises ValueError, TypeError."""
    if len(text) > _LONGEST:
        raise ValueError("too long")
    first, _, _ = text.partition(".")
    header = json.loads(urlsafe_b64decode(first + "=" * (-len(first) % 4)))
    if not isinstance(header, dict):
        raise TypeError
    return header


def _claimed(claims: Mapping[str, Any], name: str) -> datetime:
    return datetime.fromtimestamp(float(claims[name]), UTC)


def _seconds(time: datetime) -> str:
    return str(int(time.timestamp()))


def _time(seconds: bytes) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
