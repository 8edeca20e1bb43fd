"""Sessions of browsers: a signed cookie that says who has shown which token. Nothing is stored of those that are good;
those that somebody has ended are in `ended_sessions`.

The key is derived from the token itself, so that a token that was changed ends its sessions, servers with the same
tokens take each other's, and a restart ends none. Time comes from the caller.
"""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from trainyard_server.domain.permissions import Caller, Token

LIFETIME = timedelta(hours=12)
"""How long a session lives when nobody uses it. It is renewed when half of that is over..."""

LONGEST = timedelta(days=30)
"""...until so long after the sign-in."""

CODE_LIFETIME = timedelta(minutes=2)
"""How long a code for signing in is good, once."""

_NONCE_BYTES = 18
_SECONDS_DIGITS = 11
_DEFAULT_PORTS = {"http": "80", "https": "443"}


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody who has signed in. `value` is the cookie; `csrf` what a form or a script of ours knows and a page of
    another site does not. Both are secrets."""

    caller: Caller
    since: datetime
    expires: datetime
    nonce: str
    value: str = field(repr=False)
    csrf: str = field(repr=False)

    def half_over(self, now: datetime) -> bool:
        return now >= self.expires - LIFETIME / 2

    def stream_until(self, now: datetime) -> datetime:
        """How long a stream that begins now may go on: until the session can get more time, so that who looks on has
        to come back for it, and else until it is over."""
        half = self.expires - LIFETIME / 2
        return half if now < half else self.expires

    def is_csrf(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.csrf.encode())


@dataclass(frozen=True, slots=True)
class Code:
    """What somebody may sign in with once in place of the token. `text` is a secret."""

    token: Token
    expires: datetime
    text: str = field(repr=False)


class Sessions:
    """The tokens of the server, and the sessions that were opened with them."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tuple(token for token in tokens if token.secret)

    def token(self, text: str) -> Token | None:
        """The token with that text. Takes the same time for every wrong one."""
        found = None
        for token in self._tokens:
            if hmac.compare_digest(text.encode(), token.secret.encode()):
                found = token
        return found

    def open(self, token: Token, now: datetime) -> Session:
        return _signed(token, now, now + LIFETIME, secrets.token_urlsafe(_NONCE_BYTES))

    def read(self, value: str, now: datetime) -> Session | None:
        """The session of a cookie; None for one that is over, or that none of these tokens has signed."""
        said = _payload(value)
        if said is None:
            return None
        role, name, since, expires, nonce = said
        for token in self._tokens:
            if (token.role, token.name) != (role, name):
                continue
            session = _signed(token, since, expires, nonce)
            if hmac.compare_digest(session.value.encode(), value.encode()):
                return session if now < expires else None
        return None

    def renewed(self, session: Session, now: datetime) -> Session | None:
        """The same session with more time, where it is due; what pages know of it stays good."""
        expires = min(now + LIFETIME, session.since + LONGEST)
        if not session.half_over(now) or expires <= session.expires:
            return None
        for token in self._tokens:
            if token.caller == session.caller:
                old = _signed(token, session.since, session.expires, session.nonce)
                if old.value == session.value:
                    return _signed(token, session.since, expires, session.nonce)
        return None

    def code(self, token: Token, now: datetime) -> Code:
        expires = now + CODE_LIFETIME
        return Code(token, expires, _code_text(token, expires, secrets.token_urlsafe(_NONCE_BYTES)))

    def read_code(self, text: str, now: datetime) -> Code | None:
        """The code with that text, used or not; None for one that is too old, or that no token here has signed."""
        expires, _, rest = text.partition(".")
        nonce, _, _ = rest.partition(".")
        if not (expires.isascii() and expires.isdigit() and len(expires) <= _SECONDS_DIGITS):
            return None
        until = _moment(int(expires))
        found = None
        for token in self._tokens:
            if hmac.compare_digest(_code_text(token, until, nonce).encode(), text.encode()):
                found = token
        return Code(found, until, text) if found is not None and now < until else None


def cookie_name(scheme: str, host: str) -> str:
    """The name of the cookie. Browsers share the cookies of a host between its ports, where other servers may be; and
    over https they refuse a cookie with that prefix from anybody but the host itself."""
    port = host.rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
    port = port if port.isdigit() else _DEFAULT_PORTS.get(scheme, "")
    return f"{'__Host-' if scheme == 'https' else ''}trainyard-{port}"


def cookie(scheme: str, host: str, session: Session | None, now: datetime) -> str:
    """The value of a Set-Cookie header: the session, or None to forget it."""
    value = session.value if session is not None else ""
    age = int((session.expires - now).total_seconds()) if session is not None else 0
    secure = "; Secure" if scheme == "https" else ""
    return f"{cookie_name(scheme, host)}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{secure}"


def _signed(token: Token, since: datetime, expires: datetime, nonce: str) -> Session:
    said = [token.role, token.name, int(since.timestamp()), int(expires.timestamp()), nonce]
    payload = _encode(json.dumps(said, separators=(",", ":")).encode())
    key = hmac.digest(token.secret.encode(), b"trainyard session", hashlib.sha256)
    return Session(
        caller=token.caller,
        since=_moment(said[2]),
        expires=_moment(said[3]),
        nonce=nonce,
        value=f"{payload}.{_mac(key, 'cookie', payload)}",
        csrf=_mac(key, "csrf", nonce),
    )


def _code_text(token: Token, expires: datetime, nonce: str) -> str:
    key = hmac.digest(token.secret.encode(), b"trainyard sign-in code", hashlib.sha256)
    said = f"{int(expires.timestamp())}.{nonce}"
    return f"{said}.{_mac(key, token.role, f'{token.name}.{said}')}"


def _payload(value: str) -> tuple[str, str, datetime, datetime, str] | None:
    """What a cookie says, true or not."""
    try:
        role, name, since, expires, nonce = json.loads(_decode(value.partition(".")[0]))
        if not all(isinstance(text, str) for text in (role, name, nonce)):
            return None
        return role, name, _moment(since), _moment(expires), nonce
    except (ValueError, TypeError, OverflowError, OSError, RecursionError, binascii.Error):
        return None


def _moment(seconds: object) -> datetime:
    if not isinstance(seconds, int):
        raise TypeError(seconds)
    return datetime.fromtimestamp(seconds, UTC)


def _mac(key: bytes, purpose: str, text: str) -> str:
    return _encode(hmac.digest(key, f"{purpose}:{text}".encode(), hashlib.sha256))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
