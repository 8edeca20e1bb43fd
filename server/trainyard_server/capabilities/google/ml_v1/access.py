"""Service account keys: made for a person's token, exchanged for access tokens, revoked."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard_protocol.answers.google import GoogleKey, GoogleKeyRevoked
from trainyard_protocol.errors import FailedPrecondition, PermissionDenied, Unauthenticated
from trainyard_server.capabilities.google.ml_v1.grants import KEY_LIFETIME
from trainyard_server.context import Backend
from trainyard_server.services.people.audit import identify
from trainyard_server.services.people.guess_limits import GuessLimits
from trainyard_server.services.people.principals import Principals, google_key_mark
from trainyard_server.storage.db.tables import used_tokens
from trainyard_server.storage.db.tables.audit_trail import current_trail
from trainyard_server.storage.events.notifier import person_topic

if TYPE_CHECKING:
    from trainyard_server.capabilities.google.ml_v1.keys import ServiceAccountKeys


@dataclass(frozen=True, slots=True)
class AccessToken:
    text: str
    expires_in_s: int


class GoogleAccess:
    """Every call is refused without `keys`, which a server has with `--google-port`."""

    def __init__(
        self, backend: Backend, keys: "ServiceAccountKeys | None", principals: Principals, guesses: GuessLimits
    ) -> None:
        self._backend = backend
        self._keys = keys
        self._principals = principals
        self._guesses = guesses

    def issue(self, secret: str) -> GoogleKey:
        """A new key for the owner of this token. Raises FailedPrecondition without Google's names, Unauthenticated,
        PermissionDenied for the token of an agent or of a monitoring system."""
        keys = self._checked_keys()
        principal = self._principals.of_secret(secret)
        if principal is None:
            raise Unauthenticated("A key needs a token, and this call came without one.")
        if not principal.caller.is_person:
            raise PermissionDenied(f"That is the token of {principal.caller.machine}. People have tokens of their own.")
        key = keys.issue(principal.credential, self._backend.clock())
        if trail := current_trail():
            trail.subject = key.number
        return GoogleKey(
            number=key.number,
            key_id=key.key_id,
            private_key=key.private_key,
            email=f"{principal.caller.name}@{keys.domain.partition(':')[0]}",
            token_uri=keys.token_uri,
            domain=keys.domain,
            ca=self._backend.settings.google_ca,
            expires_at=key.expires,
        )

    def exchange(self, address: str, assertion: str) -> AccessToken:
        """An access token for a signed assertion. Raises Unauthenticated or TooManyGuesses for one that is not valid,
        FailedPrecondition."""
        now = self._backend.clock()
        keys = self._checked_keys()
        grant = keys.read_assertion(assertion, now)
        principal = self._principals.of_grant(grant) if grant is not None else None
        if grant is None or principal is None:
            message = "The assertion is not signed by a key of this server, or the key has expired or was revoked."
            raise self._guesses.wrong(address, Unauthenticated(message))
        identify(principal)
        text, expires = keys.access_token(grant.credential, grant.number, principal.expires_at, now)
        return AccessToken(text, int((expires - now).total_seconds()))

    def revoke(self, secret: str, number: str) -> GoogleKeyRevoked:
        """Revoke a key, which its owner's token names by number: its access tokens and streams end at once.

        Raises Unauthenticated."""
        principal = self._principals.of_secret(secret)
        if principal is None:
            raise Unauthenticated("A key is revoked with the token that it was made for.")
        now = self._backend.clock()
        with self._backend.store.write() as writer:
            used_tokens.mark_used(writer, google_key_mark(principal.credential, number), now + KEY_LIFETIME, now)
        self._backend.notifier.publish(person_topic(principal.caller.name))
        return GoogleKeyRevoked(number=number)

    def _checked_keys(self) -> "ServiceAccountKeys":
        if self._keys is None:
            raise FailedPrecondition(
                "This server does not answer to Google's names: its option --google-port is not set. For the service "
                "of this machine, `trainyard connect google` sets it."
            )
        return self._keys
