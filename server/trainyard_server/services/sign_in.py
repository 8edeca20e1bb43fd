"""Sign-in to the dashboard with a token or a one-time code, its rate limit, and revoked sessions."""

import threading
from collections import OrderedDict, deque
from datetime import datetime, timedelta

from anyio import to_thread

from trainyard_protocol.errors import PermissionDenied, TrainyardError, Unauthenticated
from trainyard_protocol.views import SignInCode
from trainyard_server.context import Backend, Clock
from trainyard_server.domain.permissions import Role, Token
from trainyard_server.domain.sessions import LONGEST, Session, Sessions
from trainyard_server.storage.db import used_tokens
from trainyard_server.storage.db.repository import Store
from trainyard_server.storage.events.notifier import Notifier, session_topic

_REVOCATION_POLL_S = 60.0  # in case the notification is lost with the server that sent it


class TooManySignIns(TrainyardError):
    """The client failed to sign in too often. It may try again after `wait_s` seconds."""

    http_status = 429
    status = "RESOURCE_EXHAUSTED"

    def __init__(self, wait_s: float) -> None:
        self.wait_s = int(wait_s) + 1
        super().__init__(f"There were too many wrong tokens. Try again in {self.wait_s} seconds.")


class SignInRateLimit:
    """Rate limit for failed sign-ins, per client: after `limit` of them within `window` the client has to wait.

    Remembers the `clients` that failed last. Thread-safe.
    """

    def __init__(
        self, limit: int = 10, window: timedelta = timedelta(minutes=1), clients: int = 1000
    ) -> None:
        self._limit = limit
        self._window = window
        self._clients = clients
        self._failures: OrderedDict[str, deque[datetime]] = OrderedDict()
        self._lock = threading.Lock()

    def wait_s(self, client: str, now: datetime) -> float:
        """Seconds until the client may try again; 0 if it may try now."""
        with self._lock:
            failures = self._failures.get(client)
            if failures is None or len(failures) < self._limit:
                return 0
            return max(0.0, (failures[0] + self._window - now).total_seconds())

    def record_failure(self, client: str, now: datetime) -> None:
        with self._lock:
            self._failures.setdefault(client, deque(maxlen=self._limit)).append(now)
            self._failures.move_to_end(client)
            while len(self._failures) > self._clients:
                self._failures.popitem(last=False)


class RevokedSessions:
    """Revoked sessions, stored in the database: refused by every server on it, also after a restart.

    Each request with a session queries the database by a primary key. A copy in memory would be outdated until the
    notification from another server arrives.
    """

    def __init__(self, store: Store, notifier: Notifier, clock: Clock) -> None:
        self._store = store
        self._notifier = notifier
        self._clock = clock

    def revoke(self, session: Session) -> None:
        """End the session for every copy of its cookie, renewed or not."""
        with self._store.write() as writer:
            used_tokens.mark_used(writer, _session_key(session), session.since + LONGEST, self._clock())
        self._notifier.publish(session_topic(session.nonce))

    def is_revoked(self, session: Session) -> bool:
        with self._store.read() as reader:
            return used_tokens.is_used(reader, _session_key(session))

    async def wait_until_revoked(self, session: Session) -> bool:
        """Wait for the revocation. False if the server shuts down before. Raises DatabaseError."""
        with self._notifier.subscribe(session_topic(session.nonce)) as subscription:
            while not self._notifier.closed:
                if await to_thread.run_sync(self.is_revoked, session):
                    return True
                await subscription.wait(_REVOCATION_POLL_S)
        return False


class SignIn:
    """Opens sessions. A session that is `replaced` in the same browser is revoked, since its user can no longer sign
    out of it."""

    def __init__(
        self, backend: Backend, sessions: Sessions, revoked: RevokedSessions, rate_limit: SignInRateLimit
    ) -> None:
        self._backend = backend
        self._sessions = sessions
        self._revoked = revoked
        self._rate_limit = rate_limit

    def code(self, secret: str) -> SignInCode:
        """A one-time code for the browser of this token's owner. Raises Unauthenticated."""
        token = self._sessions.token(secret)
        if token is None:
            raise Unauthenticated("A sign-in code needs a token, and this call came without one.")
        code = self._sessions.code(token, self._backend.clock())
        return SignInCode(code=code.text, expires_at=code.expires, name=token.name, role=token.role.value)

    def with_token(self, client: str, secret: str, replaced: Session | None = None) -> Session:
        """A new session. Raises Unauthenticated for an unknown token, PermissionDenied for an agent's token,
        TooManySignIns."""
        self._check_rate(client)
        token = self._sessions.token(secret)
        if token is None:
            self._rate_limit.record_failure(client, self._backend.clock())
            raise Unauthenticated("That is not a token of this server. Check that all of it was copied.")
        return self._open(token, replaced)

    def with_code(self, client: str, text: str, replaced: Session | None = None) -> Session:
        """A new session. Raises Unauthenticated for an unknown, expired or used code, TooManySignIns."""
        now = self._backend.clock()
        self._check_rate(client)
        code = self._sessions.read_code(text, now)
        if code is not None:
            with self._backend.store.write() as writer:
                # By its nonce: one signature can be written in several ways.
                if not used_tokens.mark_used(writer, f"code {code.nonce}", code.expires, now):
                    code = None
        if code is None:
            self._rate_limit.record_failure(client, now)
            raise Unauthenticated(
                "That link was used already, or is older than two minutes. `trainyard dashboard` makes a new one."
            )
        return self._open(code.token, replaced)

    def _check_rate(self, client: str) -> None:
        wait_s = self._rate_limit.wait_s(client, self._backend.clock())
        if wait_s:
            raise TooManySignIns(wait_s)

    def _open(self, token: Token, replaced: Session | None) -> Session:
        if not token.caller.may(Role.VIEWER):
            raise PermissionDenied("That is the token of a worker agent. People have tokens of their own.")
        if replaced is not None:
            self._revoked.revoke(replaced)
        return self._sessions.open(token, self._backend.clock())


def _session_key(session: Session) -> str:
    return f"session {session.nonce}"
