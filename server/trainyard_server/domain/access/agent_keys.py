"""Keys of agents. Each agent has one of its own, and its calls open its own runs alone. Pure."""

import re
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest

from trainyard_protocol.errors import Unauthenticated
from trainyard_protocol.wire.agents import AGENT_KEY

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class AgentKey:
    """The key that came with a call: 256 bits as hex digits. The server stores its digest alone."""

    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        """Raises Unauthenticated for anything but a key."""
        if not self.secret:
            raise Unauthenticated(f"This call has no {AGENT_KEY}: every worker agent creates a key and sends it.")
        if not _KEY.fullmatch(self.secret):
            raise Unauthenticated(f"{AGENT_KEY} must be 64 hex digits, in lower case.")

    @property
    def digest(self) -> str:
        return sha256(self.secret.encode()).hexdigest()

    def opens(self, digest: str) -> bool:
        """Whether this is the key with that digest."""
        return compare_digest(self.digest, digest)
