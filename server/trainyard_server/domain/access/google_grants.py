"""Worth of the service account keys for Google's clients, apart from their cryptography, which takes long to load."""

from dataclasses import dataclass
from datetime import datetime, timedelta

KEY_LIFETIME = timedelta(days=366)

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_PATHS = ("/token", "/oauth2/v4/token")


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """Worth of a key or of its access token: that of a credential, until then."""

    credential: str
    number: str
    expires: datetime
