"""Browser sessions and sign-in codes, signed with itsdangerous. Valid sessions are not stored; revoked ones are.

The signing key is derived from the token: a changed token ends its sessions, servers with the same tokens accept each
other's sessions, and a restart ends none. Callers pass the time.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from itsdangerous import BadSignature, Signer

from trainyard_server.domain.permissions import Caller, Token

LIFETIME = timedelta(hours=12)
"""Lifetime of an unused session. It is renewed after half of that..."""

LONGEST = timedelta(days=30)
"""...until this long after the sign-in."""

CODE_LIFETIME = timedelta(minutes=2)
"""Lifetime of a sign-in code. It can be used once."""

_NONCE_BYTES = 18
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_NOT_SIGNED = (BadSignature, ValueError, OverflowError, OSError)  # also: fields that a token's owner made up


@dataclass(frozen=True, slots=True)
class Session:
    """A signed-in browser. `value` is its cookie; `csrf` is known to its pages only. Both are secrets. The nonce
    identifies the session and survives a renewal."""

    token: Token
    since: datetime
    expires: datetime
    nonce: str
    value: str = field(repr=False)
    csrf: str = field(repr=False)

    @property
    def caller(self) -> Caller:
        return self.token.caller

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
    """A one-time sign-in code in place of the token. `text` is a secret; the nonce identifies the code."""

    token: Token
    expires: datetime
    nonce: str
    text: str = field(repr=False)


class Sessions:
    """Opens, reads and renews the sessions of the server's tokens."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tuple(token for token in tokens if token.secret)

    def token(self, text: str) -> Token | None:
        """The token with that text. Takes the same time for every wrong text."""
        match = None
        for token in self._tokens:
            if hmac.compare_digest(text.encode(), token.secret.encode()):
                match = token
        return match

    def open(self, token: Token, now: datetime) -> Session:
        return _session(token, now, now + LIFETIME, _nonce())

    def read(self, value: str, now: datetime) -> Session | None:
        """The session of a cookie. None if it has expired or no token has signed it."""
        for token in self._tokens:
            try:
                since, expires, nonce = _unsign(token, "session", value)
                session = _session(token, _time(since), _time(expires), nonce)
            except _NOT_SIGNED:
                continue
            return session if now < session.expires else None
        return None

    def renewed(self, session: Session, now: datetime) -> Session | None:
        """The same session with a later expiry and the same CSRF value. None if no renewal is due."""
        expires = min(now + LIFETIME, session.since + LONGEST)
        if not session.half_over(now) or expires <= session.expires:
            return None
        return _session(session.token, session.since, expires, session.nonce)

    def code(self, token: Token, now: datetime) -> Code:
        return _code(token, now + CODE_LIFETIME, _nonce())

    def read_code(self, text: str, now: datetime) -> Code | None:
        """The code with that text, used or not. None if it has expired or no token has signed it."""
        for token in self._tokens:
            try:
                expires, nonce = _unsign(token, "code", text)
                code = _code(token, _time(expires), nonce)
            except _NOT_SIGNED:
                continue
            return code if now < code.expires else None
        return None


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
    secure = "; Secure" if scheme == "https" else ""
    return f"{cookie_name(scheme, host)}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{secure}"


def _session(token: Token, since: datetime, expires: datetime, nonce: str) -> Session:
    value = _sign(token, "session", _seconds(since), _seconds(expires), nonce)
    csrf = _signer(token, "csrf").get_signature(nonce).decode()
    return Session(token, _time(_seconds(since)), _time(_seconds(expires)), nonce, value, csrf)


def _code(token: Token, expires: datetime, nonce: str) -> Code:
    seconds = _seconds(expires)
    return Code(token, _time(seconds), nonce, _sign(token, "code", seconds, nonce))


def _sign(token: Token, purpose: str, *fields: str) -> str:
    return _signer(token, purpose).sign(".".join(fields)).decode()


def _unsign(token: Token, purpose: str, text: str) -> list[str]:
    """The signed fields. Raises BadSignature, ValueError."""
    return _signer(token, purpose).unsign(text).decode().split(".")


def _signer(token: Token, purpose: str) -> Signer:
    """Each purpose, role and name has its own key, so a signature for one is none for another."""
    salt = f"trainyard {purpose} {token.role} {token.name}"
    return Signer(token.secret, salt, key_derivation="hmac", digest_method=hashlib.sha256)


def _nonce() -> str:
    return secrets.token_urlsafe(_NONCE_BYTES)


def _seconds(time: datetime) -> str:
    return str(int(time.timestamp()))


def _time(seconds: str) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
