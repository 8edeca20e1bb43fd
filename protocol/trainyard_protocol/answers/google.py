"""Google's names of a server (`--google-port`), and the keys that it gives to Google's clients."""

from collections.abc import Sequence
from datetime import datetime

from pydantic import Field

from trainyard_protocol.message import Wire

DEFAULT_DOMAIN = "trainyard.localhost"

SERVICES = ("ml", "aiplatform", "logging", "storage", "oauth2", "iamcredentials", "www")
"""The services of Google that clients look for below a universe domain."""


GOOGLES_DOMAIN = "googleapis.com"
"""The domain that programs in jobs ask for which know no universe domain, such as TensorFlow for gs://."""


def host_of(domain: str) -> str:
    """A universe domain without its port."""
    return domain.partition(":")[0]


def names_of(domain: str) -> Sequence[str]:
    """The host names of the services below a universe domain, which may have a port."""
    return [f"{service}.{host_of(domain)}" for service in SERVICES]


class GoogleKey(Wire):
    """A new key of a service account, once. `number` is what it is revoked by, `key_id` what signatures name it by.

    `domain` is the universe domain, with the port; `ca` the certificate of the authority that signs for its names."""

    number: str
    key_id: str
    private_key: str = Field(repr=False)
    email: str
    token_uri: str
    domain: str
    ca: str
    expires_at: datetime


class GoogleKeyRevoked(Wire):
    number: str
