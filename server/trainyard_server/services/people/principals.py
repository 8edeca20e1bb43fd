"""Principals: the owner of a token or a session, now, and when that ends.

Tokens of files are compared in memory. Tokens that were made while the server runs, and roles in projects, are read
from the database with each request, and again in the transaction of its change: a revocation holds at once on every
server, also for calls that are being served.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from anyio import to_thread

from trainyard_protocol.answers.people import TOKEN_PREFIX
from trainyard_protocol.errors import PermissionDenied, Unauthenticated
from trainyard_protocol.states import RunState
from trainyard_server.context import Clock
from trainyard_server.domain.access.grants import CredentialGrant
from trainyard_server.domain.access.permissions import Caller, Role, Token
from trainyard_server.domain.access.run_tokens import RunTokens
from trainyard_server.domain.access.sessions import LONGEST, SINGLE_SIGN_ON, Session
from trainyard_server.storage.db.base.people_models import TokenRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.db.tables import people, used_tokens
from trainyard_server.storage.events.notifier import Notifier, person_topic, session_topic

_USE_PRECISION = timedelta(minutes=1)
_POLL_S = 60.0  # in case the notification is lost with the server that sent it

_MADE = "made:"
_RUN = "run:"
_WITHOUT_TOKEN = "single-sign-on"  # noqa: S105 - no secret
_LONGEST_NAME = 128  # of the database
_FILE_ID = len("file-") + 12


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller with the credential that it came by. `lasting`: nothing ends it but a restart of the server.
    `google_key`: the number of the key that stands for the credential. `of_run`: a run, which may call the storage
    alone."""

    credential: str
    caller: Caller
    expires_at: datetime | None = None
    lasting: bool = False
    google_key: str = ""
    of_run: bool = False

    @property
    def token_id(self) -> str:
        """The id of its token in the list of tokens, or `single-sign-on`."""
        return _WITHOUT_TOKEN if self.credential.startswith(SINGLE_SIGN_ON) else token_id(self.credential)

    @property
    def public_id(self) -> str:
        """The credential without its secret: `token:ID`, or `single-sign-on`."""
        return self.token_id if self.token_id == _WITHOUT_TOKEN else f"token:{self.token_id}"


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

    def is_revoked(self, session: Session, reader: Reader) -> bool:
        return used_tokens.is_used(reader, _session_key(session))


class Credentials(Protocol):
    """A further kind of credential."""

    @property
    def issuer(self) -> str:
        """The host at which people sign in to the dashboard; "" where this kind is not for people. Without one,
        sessions of single sign-on are worth nothing."""

    def read_bearer(self, text: str, now: datetime) -> CredentialGrant | None:
        """The worth of the bearer of a call; None if it is none of this kind."""


class Principals:
    def __init__(
        self,
        store: Store,
        tokens: Sequence[Token],
        revoked: RevokedSessions,
        notifier: Notifier,
        clock: Clock,
        *,
        credentials: Sequence[Credentials] = (),
        run_tokens: RunTokens | None = None,
    ) -> None:
        """Further credentials than tokens are valid with `credentials`, and tokens of runs with `run_tokens`."""
        self._run_tokens = run_tokens
        self._credentials = credentials
        self._store = store
        self._revoked = revoked
        self._notifier = notifier
        self._clock = clock
        usable = [token for token in tokens if token.secret]
        self._by_digest = {people.digest_of(token.secret): token for token in usable}
        self._by_credential = {token.credential: token for token in usable}

    def of_file(self, secret: str) -> Principal | None:
        """The principal of a token from a file. Reads nothing; compares digests, so its time tells nothing."""
        return _of_file(self._by_digest.get(people.digest_of(secret)))

    def of_secret(self, secret: str) -> Principal | None:
        """The principal of a token; None if it is unknown, expired or revoked. Raises DatabaseError."""
        if (principal := self.of_file(secret)) or not secret.startswith(TOKEN_PREFIX):
            return principal
        now = self._clock()
        with self._store.read() as reader:
            row = people.token_by_secret(reader, secret)
            principal = _of_row(reader, row, now)
        if row is not None and principal is not None and _is_older(row.last_used_at, now):
            with self._store.write() as writer:
                people.mark_used(writer, row.token_id, now)
        return principal

    def of_bearer(self, secret: str) -> Principal | None:
        """The principal of a call's bearer: a token, that of a run, or what a client of Google's has made with its key.
        Raises DatabaseError."""
        if self._run_tokens is not None and (run_id := self._run_tokens.run_id(secret)):
            return self.of_run(run_id)
        for credentials in self._credentials:
            if (grant := credentials.read_bearer(secret, self._clock())) is not None:
                return self.of_grant(grant)
        return self.of_secret(secret)

    def of_run(self, run_id: str) -> Principal | None:
        """The principal of a run: its job, as a submitter of its project; None once it has ended. Raises
        DatabaseError."""
        return self.of_credential(f"{_RUN}{run_id}")

    def of_grant(self, grant: CredentialGrant) -> Principal | None:
        """The principal that a key stands for now; None if the key or its credential was revoked. Raises
        DatabaseError."""
        with self._store.read() as reader:
            return self._of_grant(reader, grant)

    def of_credential(self, credential: str) -> Principal | None:
        """The principal that the credential of a session or a code stands for now. Raises DatabaseError."""
        with self._store.read() as reader:
            return self._of_credential(reader, credential)

    def of_person(self, name: str) -> Principal:
        """The principal of somebody whom the issuer of single sign-on has named. Raises DatabaseError."""
        with self._store.read() as reader:
            return _of_person(reader, name)

    def of_session(self, session: Session) -> Principal | None:
        """The principal of a session; None if it was ended, or its credential is worth nothing now. Raises
        DatabaseError."""
        with self._store.read() as reader:
            if self._revoked.is_revoked(session, reader):
                return None
            return self._of_credential(reader, session.credential)

    def check_again(self, principal: Principal, session: Session | None, reader: Reader) -> None:
        """Check in a transaction that writes that the caller of an admitted call is what it was. Raises Unauthenticated
        for a credential that was revoked or has expired meanwhile, PermissionDenied for a lost role."""
        now = self._now(reader, principal, session)
        if now is None:
            what = "token" if session is None else "session, or the token that opened it,"
            raise Unauthenticated(f"The {what} was revoked or has expired while the server served this call.")
        if not now.caller.includes(principal.caller):
            raise PermissionDenied(
                f"The roles of {now.caller.name} were reduced while the server served this call. `trainyard projects "
                "list` shows yours."
            )

    async def wait_until_changed(self, principal: Principal, session: Session | None) -> bool:
        """Wait until the principal ends, by revocation or expiry, or has other roles. False if the server shuts down
        before. Raises DatabaseError."""
        topics = [person_topic(principal.caller.name)]
        if session is not None:
            topics.append(session_topic(session.nonce))
        with self._notifier.subscribe(*topics) as subscription:
            while not self._notifier.closed:
                if await to_thread.run_sync(self._read_again, principal, session) != principal:
                    return True
                await subscription.wait(_POLL_S)
        return False

    def _read_again(self, principal: Principal, session: Session | None) -> Principal | None:
        with self._store.read() as reader:
            return self._now(reader, principal, session)

    def _now(self, reader: Reader, principal: Principal, session: Session | None) -> Principal | None:
        if session is not None and self._revoked.is_revoked(session, reader):
            return None
        if principal.google_key and principal.expires_at is not None:
            grant = CredentialGrant(principal.credential, principal.google_key, principal.expires_at)
            return self._of_grant(reader, grant)
        return self._of_credential(reader, principal.credential)

    def _of_grant(self, reader: Reader, grant: CredentialGrant) -> Principal | None:
        if grant.expires <= self._clock():
            return None
        if used_tokens.is_used(reader, google_key_mark(grant.credential, grant.number)):
            return None
        principal = self._of_credential(reader, grant.credential)
        if principal is None:
            return None
        ends = [grant.expires] if principal.expires_at is None else [grant.expires, principal.expires_at]
        return replace(principal, expires_at=min(ends), lasting=False, google_key=grant.number)

    def _of_credential(self, reader: Reader, credential: str) -> Principal | None:
        if credential.startswith(_RUN):
            return _of_run(reader, credential.removeprefix(_RUN))
        if credential.startswith(_MADE):
            row = people.token(reader, credential.removeprefix(_MADE))
            return _of_row(reader, row, self._clock())
        if credential.startswith(SINGLE_SIGN_ON):
            is_valid = any(credentials.issuer for credentials in self._credentials)
            return _of_person(reader, credential.removeprefix(SINGLE_SIGN_ON)) if is_valid else None
        return _of_file(self._by_credential.get(credential))


def google_key_mark(credential: str, number: str) -> str:
    """The text that is marked as used once the key of a credential is revoked."""
    return f"google key {number} of {credential}"


def token_id(credential: str) -> str:
    """The id of a token as the list of tokens shows it."""
    if credential.startswith("file:"):
        return credential.replace(":", "-")[:_FILE_ID]
    return credential.removeprefix(_MADE)


def _of_file(token: Token | None) -> Principal | None:
    return Principal(token.credential, token.caller, lasting=True) if token is not None else None


def _of_person(reader: Reader, name: str) -> Principal:
    return Principal(SINGLE_SIGN_ON + name, Caller(name, people.roles_of(reader, name)))


def _of_run(reader: Reader, run_id: str) -> Principal | None:
    run = reader.run(run_id)
    if run is None or run.state is RunState.ENDED:
        return None
    job = reader.job_by_key(run.job_key)
    name = f"job:{job.project}/{job.job_id}"[:_LONGEST_NAME]
    caller = Caller(name, {job.project: Role.SUBMITTER}, is_run=True)
    return Principal(f"{_RUN}{run_id}", caller, of_run=True)


def _of_row(reader: Reader, row: TokenRow | None, now: datetime) -> Principal | None:
    if row is None or row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
        return None
    credential = f"{_MADE}{row.token_id}"
    if row.for_agent:
        return Principal(credential, Caller.everywhere(Role.AGENT, row.owner), row.expires_at)
    return Principal(credential, Caller(row.owner, people.roles_of(reader, row.owner)), row.expires_at)


def _is_older(time: datetime | None, now: datetime) -> bool:
    return time is None or now - time >= _USE_PRECISION


def _session_key(session: Session) -> str:
    return f"session {session.nonce}"
