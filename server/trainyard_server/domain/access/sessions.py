"""Browser sessions and sign-in codes, signed with itsdangerous. Valid sessions are not stored; revoked ones are.

A session names the credential that opened it (see `services.principals`), and is worth what that is worth now: a
revoked token ends its sessions. Servers with the same key accept each other's sessions, and a restart ends none.
Callers pass the time.
"""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from itsdangerous import BadSignature, Signer

LIFETIME = timedelta(hours=12)
"""Lifetime of an unused session. It is renewed after half of that..."""

LONGEST = timedelta(days=30)
"""...until this long after the sign-in."""

SINGLE_SIGN_ON = "oidc:"
"""The start of the credential of single sign-on. Its sessions are not renewed: the issuer is asked again."""

CODE_LIFETIME = timedelta(minutes=2)
"""Lifetime of a sign-in code. It can be used once."""

_NONCE_BYTES = 18
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_NOT_SIGNED = (BadSignature, ValueError, OverflowError, OSError)  # also: fields of another version


@dataclass(frozen=True, slots=True)
class Session:
    """A signed-in browser. `value` is its cookie; `csrf` is known to its pages only. Both are secrets. The nonce
    identifies the session and survives a renewal."""

    credential: str
    since: datetime
    expires: datetime
    nonce: str
    value: str = field(repr=False)
    csrf: str = field(repr=False)

    def half_over(self, now: datetime) -> bool:
        return now >= self.expires - LIFETIME / 2

    def stream_until(self, now: datetime) -> datetime:
        """When a stream that starts now has to end: when the session can be renewed, so that its reader comes back
        for the renewal; after that when the session expires."""
        half = self.expires - LIFETIME / 2
        return half if now < half else self.expires

    def is_csrf(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.csrf.encode())


@dataclass(frozen=True, slots=True)
class Code:
    """A one-time sign-in code in place of the credential. `text` is a secret; the nonce identifies the code."""

    credential: str
    expires: datetime
    nonce: str
    text: str = field(repr=False)


class Sessions:
    """Opens, reads and renews sessions, signed with the key of the installation."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def open(self, credential: str, now: datetime) -> Session:
        return self._session(credential, now, now + LIFETIME, _nonce())

    def read(self, value: str, now: datetime) -> Session | None:
        """The session of a cookie. None if it has expired or this key has not signed it."""
        try:
            credential, since, expires, nonce = self._unsign("session", value)
            session = self._session(_decoded(credential), _time(since), _time(expires), nonce)
        except _NOT_SIGNED:
            return None
        return session if now < session.expires else None

    def renewed(self, session: Session, now: datetime) -> Session | None:
        """The same session with a later expiry and the same CSRF value. None if no renewal is due."""
        expires = min(now + LIFETIME, session.since + LONGEST)
        if not session.half_over(now) or expires <= session.expires:
            return None
        if session.credential.startswith(SINGLE_SIGN_ON):
            return None
        return self._session(session.credential, session.since, expires, session.nonce)

    def code(self, credential: str, now: datetime) -> Code:
        return self._code(credential, now + CODE_LIFETIME, _nonce())

    def read_code(self, text: str, now: datetime) -> Code | None:
        """The code with that text, used or not. None if it has expired or this key has not signed it."""
        try:
            credential, expires, nonce = self._unsign("code", text)
            code = self._code(_decoded(credential), _time(expires), nonce)
        except _NOT_SIGNED:
            return None
        return code if now < code.expires else None

    def _session(self, credential: str, since: datetime, expires: datetime, nonce: str) -> Session:
        value = self._sign("session", _encoded(credential), _seconds(since), _seconds(expires), nonce)
        csrf = self._signer("csrf").get_signature(nonce).decode()
        return Session(credential, _time(_seconds(since)), _time(_seconds(expires)), nonce, value, csrf)

    def _code(self, credential: str, expires: datetime, nonce: str) -> Code:
        seconds = _seconds(expires)
        text = self._sign("code", _encoded(credential), seconds, nonce)
        return Code(credential, _time(seconds), nonce, text)

    def _sign(self, purpose: str, *fields: str) -> str:
        return self._signer(purpose).sign(".".join(fields)).decode()

    def _unsign(self, purpose: str, text: str) -> list[str]:
        """The signed fields. Raises BadSignature, ValueError."""
        return self._signer(purpose).unsign(text).decode().split(".")

    def _signer(self, purpose: str) -> Signer:
        """Each purpose has its own key, so a signature for one is none for another."""
        return Signer(self._key, f"trainyard {purpose}", key_derivation="hmac", digest_method=hashlib.sha256)


def cookie_name(scheme: str, host: str) -> str:
    """The name of the cookie. It has the port, since browsers share cookies between the ports of a host; over https
    the prefix `__Host-` makes browsers refuse the cookie from any other host."""
    port = host.rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
    port = port if port.isdigit() else _DEFAULT_PORTS.get(scheme, "")
    return f"{'__Host-' if scheme == 'https' else ''}trainyard-{port}"


def cookie(scheme: str, host: str, session: Session | None, now: datetime) -> str:
    """The value of a Set-Cookie header. A session of None deletes the cookie."""
    value = session.value if session is not None else ""
    age = int((session.expires - now).total_seconds()) if session is not None else 0
    return set_cookie(scheme, cookie_name(scheme, host), value, age)


def set_cookie(scheme: str, name: str, value: str, age_s: int) -> str:
    """The value of a Set-Cookie header for a cookie that only the server reads. An age of 0 deletes it."""
    secure = "; Secure" if scheme == "https" else ""
    return f"{name}={value}; Path=/; Max-Age={age_s}; HttpOnly; SameSite=Lax{secure}"


def _encoded(credential: str) -> str:
    """The credential in a form that lacks the separator of fields."""
    return urlsafe_b64encode(credential.encode()).decode()


def _decoded(text: str) -> str:
    return urlsafe_b64decode(text.encode()).decode()


def _nonce() -> str:
    return secrets.token_urlsafe(_NONCE_BYTES)


def _seconds(time: datetime) -> str:
    return str(int(time.timestamp()))


def _time(seconds: str) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
