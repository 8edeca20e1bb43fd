"""Sign-in to the dashboard with a token or a one-time code."""

from datetime import datetime

from trainyard_protocol.answers.people import SignInCode
from trainyard_protocol.errors import PermissionDenied, TrainyardError, Unauthenticated
from trainyard_server.context import Backend
from trainyard_server.domain.access.sessions import Code, Session, Sessions
from trainyard_server.services.people.audit import identify
from trainyard_server.services.people.guess_limits import GuessLimits
from trainyard_server.services.people.principals import Principal, Principals, RevokedSessions
from trainyard_server.storage.db.tables import used_tokens


class OtherAccount(TrainyardError):
    """The link is for another account than the session of this browser. Its person has to be asked; the link can still
    be used."""

    def __init__(self, present: str, name: str) -> None:
        super().__init__(f"This browser is signed in as {present}, and the link is for {name}.")
        self.present = present
        self.name = name


class SignIn:
    """Opens sessions. A session that is `replaced` in the same browser is revoked, since its user can no longer sign
    out of it."""

    def __init__(
        self,
        backend: Backend,
        sessions: Sessions,
        principals: Principals,
        revoked: RevokedSessions,
        guesses: GuessLimits,
    ) -> None:
        self._backend = backend
        self._sessions = sessions
        self._identities = principals
        self._revoked = revoked
        self._guesses = guesses

    def code(self, secret: str) -> SignInCode:
        """A one-time code for the browser of this token's owner. Raises Unauthenticated."""
        principal = self._identities.of_secret(secret)
        if principal is None:
            raise Unauthenticated("A sign-in code needs a token, and this call came without one.")
        code = self._sessions.code(principal.credential, self._backend.clock())
        caller = principal.caller
        return SignInCode(code=code.text, expires_at=code.expires, name=caller.name, role=str(caller.role or ""))

    def with_token(self, address: str, secret: str, replaced: Session | None = None) -> Session:
        """A new session. Raises Unauthenticated or TooManyGuesses for an unknown token, PermissionDenied for an agent's
        token."""
        principal = self._identities.of_secret(secret)
        if principal is None:
            raise self._guesses.wrong(
                address, Unauthenticated("That is not a token of this server. Check that all of it was copied.")
            )
        return self._open(principal, replaced)

    def with_code(
        self, address: str, text: str, replaced: Session | None = None, *, confirmed: bool = False
    ) -> Session:
        """A new session. Raises Unauthenticated or TooManyGuesses for an unknown, expired or used code, OtherAccount
        where a session of another account would be replaced without being `confirmed`."""
        now = self._backend.clock()
        code = self._sessions.read_code(text, now)
        principal = self._identities.of_credential(code.credential) if code is not None else None
        if principal is not None and replaced is not None and not confirmed:
            present = self._identities.of_credential(replaced.credential)
            if present is not None and present.caller.name != principal.caller.name:
                raise OtherAccount(present.caller.name, principal.caller.name)
        if code is not None and principal is not None and self._use(code, now):
            return self._open(principal, replaced)
        raise self._guesses.wrong(
            address,
            Unauthenticated(
                "That link was used already, or is older than two minutes. `trainyard dashboard` makes a new one."
            ),
        )

    def _use(self, code: Code, now: datetime) -> bool:
        """Mark the code as used, by its nonce: one signature can be written in several ways. False if it was used."""
        with self._backend.store.write() as writer:
            return used_tokens.mark_used(writer, f"code {code.nonce}", code.expires, now)

    def as_person(self, name: str, replaced: Session | None = None) -> Session:
        """A new session of a person whom the issuer of single sign-on has named."""
        return self._open(self._identities.of_person(name), replaced)

    def _open(self, principal: Principal, replaced: Session | None) -> Session:
        identify(principal)
        if not principal.caller.is_person:
            raise PermissionDenied(f"That is the token of {principal.caller.machine}. People have tokens of their own.")
        if replaced is not None:
            self._revoked.revoke(replaced)
        return self._sessions.open(principal.credential, self._backend.clock())
