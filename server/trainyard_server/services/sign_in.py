"""Signing in to the dashboard: with a token, or with a code that somebody who has one asked for."""

from trainyard_protocol.errors import PermissionDenied, TrainyardError, Unauthenticated
from trainyard_protocol.views import SignInCode
from trainyard_server.context import Backend
from trainyard_server.domain.permissions import Role, Token
from trainyard_server.domain.sessions import Session, Sessions
from trainyard_server.services.rate_limit import Guesses
from trainyard_server.services.session_revocation import EndedSessions
from trainyard_server.storage.db import used_tokens as spent


class TooManyGuesses(TrainyardError):
    """This client has shown too many wrong tokens lately; `wait_s`: for so many seconds it may not try."""

    http_status = 429
    status = "RESOURCE_EXHAUSTED"

    def __init__(self, wait_s: float) -> None:
        self.wait_s = int(wait_s) + 1
        super().__init__(f"There were too many wrong tokens. Try again in {self.wait_s} seconds.")


class SigningIn:
    """A session that is `replaced` by another in the same browser ends: nobody could sign out of it any more."""

    def __init__(self, backend: Backend, sessions: Sessions, ended: EndedSessions, guesses: Guesses) -> None:
        self._backend = backend
        self._sessions = sessions
        self._ended = ended
        self._guesses = guesses

    def code(self, secret: str) -> SignInCode:
        """A code for the browser of whoever has this token. Raises Unauthenticated."""
        token = self._sessions.token(secret)
        if token is None:
            raise Unauthenticated(
                "A code for signing in is given to a token, and this call came without one."
            )
        code = self._sessions.code(token, self._backend.clock())
        return SignInCode(code=code.text, expires_at=code.expires, name=token.name, role=token.role.value)

    def with_token(self, client: str, secret: str, replaced: Session | None = None) -> Session:
        """A new session. Raises Unauthenticated for a token that is none, PermissionDenied for an agent's,
        TooManyGuesses for a client that was wrong too often."""
        now = self._backend.clock()
        self._check_guesses(client)
        token = self._sessions.token(secret)
        if token is None:
            self._guesses.wrong(client, now)
            raise Unauthenticated("That is not a token of this server. Check that all of it was copied.")
        return self._opened(token, replaced)

    def with_code(self, client: str, text: str, replaced: Session | None = None) -> Session:
        """A new session. Raises Unauthenticated for a code that is none, is too old or was used."""
        now = self._backend.clock()
        self._check_guesses(client)
        code = self._sessions.read_code(text, now)
        if code is not None:
            with self._backend.store.write() as writer:
                if not spent.spend(writer, text, code.expires, now):
                    code = None
        if code is None:
            self._guesses.wrong(client, now)
            raise Unauthenticated(
                "That link was used already, or is older than two minutes. `trainyard dashboard` makes a new one."
            )
        return self._opened(code.token, replaced)

    def _check_guesses(self, client: str) -> None:
        wait_s = self._guesses.wait_s(client, self._backend.clock())
        if wait_s:
            raise TooManyGuesses(wait_s)

    def _opened(self, token: Token, replaced: Session | None) -> Session:
        if not token.caller.may(Role.VIEWER):
            raise PermissionDenied("That is the token of a worker agent. People have tokens of their own.")
        if replaced is not None:
            self._ended.end(replaced)
        return self._sessions.open(token, self._backend.clock())
