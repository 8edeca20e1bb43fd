"""Sign-in to the dashboard with an account of an OpenID Connect issuer.

Whoever has no account may begin a sign-in and come back with any code, for which the issuer is asked. Few do that at a
time, in threads; some wait for them without a thread, and all others are refused at once.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import to_thread

from trainyard_protocol.errors import TooManyRequests, Unauthenticated
from trainyard_server.capabilities.single_sign_on.oidc import Attempt, Attempts, check_claims, name_of
from trainyard_server.capabilities.single_sign_on.options import OidcOptions
from trainyard_server.context import Clock
from trainyard_server.domain.access.sessions import Session
from trainyard_server.services.people.sign_in import SignIn

if TYPE_CHECKING:
    from trainyard_server.capabilities.single_sign_on.oidc_issuer import OidcIssuer

CONCURRENT = 4
"""Sign-ins that ask the issuer at a time: as many threads, of those that all requests share."""

WAITING = 16
"""Sign-ins that wait for them."""

_WAIT_S = 2.0

_REFUSALS = {
    "access_denied": "The issuer says that access was denied.",
    "login_required": "The issuer says that you are not signed in there.",
    "interaction_required": "The issuer needs you to do something there first.",
    "temporarily_unavailable": "The issuer says that it is not available now.",
    "server_error": "The issuer says that it has an error.",
}
"""Errors of the issuer's sign-in page (RFC 6749, section 4.1.2.1) that people can meet."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A sign-in that has begun: where the browser goes, and the value of the cookie that ties the answer to it."""

    url: str
    cookie: str


class SingleSignOn:
    def __init__(
        self, options: OidcOptions, issuer: "OidcIssuer", attempts: Attempts, sign_in: SignIn, clock: Clock
    ) -> None:
        self._options = options
        self._issuer = issuer
        self._attempts = attempts
        self._sign_in = sign_in
        self._clock = clock
        self._turns = asyncio.Semaphore(CONCURRENT)
        self._waiting = 0

    async def begin(self, next_path: str) -> Begun:
        """Raises IssuerFailed, TooManyRequests."""
        attempt = self._attempts.begin(next_path, self._clock())
        async with self._turn():
            url = await to_thread.run_sync(self._issuer.authorization_url, attempt)
        return Begun(url, self._attempts.cookie_of(attempt))

    async def finish(
        self, cookie: str, state: str, code: str, error: str, replaced: Session | None = None
    ) -> tuple[Session, str]:
        """The session of the person whom the issuer names, and the path to go on to.

        `cookie` is that of `begin`; the others are the issuer's answer. Raises Unauthenticated, IssuerFailed,
        TooManyRequests.
        """
        attempt = self._attempts.read(cookie, self._clock())
        if attempt is None or not attempt.is_state(state):
            raise Unauthenticated(
                "This sign-in was not begun in this browser, or more than 10 minutes ago. Sign in again."
            )
        if error or not code:
            raise Unauthenticated(_REFUSALS.get(error, "The issuer refused the sign-in."))
        async with self._turn():
            session = await to_thread.run_sync(self._session, code, attempt, replaced)
        return session, attempt.next_path

    def _session(self, code: str, attempt: Attempt, replaced: Session | None) -> Session:
        claims = self._issuer.claims(code, attempt)
        check_claims(claims, self._options.issuer, self._options.client_id, attempt, self._clock())
        name = name_of(claims, self._options.name_claim)
        return self._sign_in.as_person(name, replaced)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Raises TooManyRequests."""
        refusal = TooManyRequests("Too many people sign in at the same time. Try again in 10 s.", 10)
        if self._turns.locked() and self._waiting >= WAITING:
            raise refusal
        self._waiting += 1
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._turns.acquire()
        except TimeoutError as error:
            raise refusal from error
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()
