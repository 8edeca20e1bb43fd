"""Worth of what stands for a credential until a time."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class CredentialGrant:
    """Worth of a key or of its access token: that of a credential, until then. The key of that number can be
    revoked."""

    credential: str
    number: str
    expires: datetime
