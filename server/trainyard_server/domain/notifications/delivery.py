"""Rules of delivery: the pauses between attempts, the addresses that are refused, and the signature of a webhook."""

import base64
import hashlib
import hmac
import ipaddress
from datetime import timedelta

GIVE_UP_AFTER = timedelta(days=3)
"""From the first attempt on; then a notification has failed."""

_FIRST_PAUSE_S = 10.0
_LONGEST_PAUSE_S = 900.0
_GONE = 410

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def pause(attempts: int) -> timedelta:
    """The pause after so many attempts, from 10 s on twice as long each time, at most 15 minutes."""
    return timedelta(seconds=min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempts - 1, 10)))


def is_final(status: int) -> bool:
    """Whether a receiver that answers so wants no further attempt."""
    return status == _GONE


def is_of_receiver(status: int) -> bool:
    """Whether an answer is about the receiver itself, and not about what was sent to it."""
    return status >= 500 or status in (408, 425, 429)


def refused_address(text: str) -> str:
    """The kind of an IP address that nothing is sent to, "" for another one: there are the services of this machine,
    and the metadata of a cloud."""
    address: Address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address.sixtofour or address
    kinds = {
        "loopback": address.is_loopback,
        "link-local": address.is_link_local,
        "unspecified": address.is_unspecified,
        "multicast": address.is_multicast,
    }
    return next((kind for kind, applies in kinds.items() if applies), "")


def signing_key(server_key: bytes, project: str) -> bytes:
    """The key of a project's signatures."""
    return hmac.digest(server_key, f"webhooks of {project}".encode(), hashlib.sha256)


def key_text(key: bytes) -> str:
    """A key as the libraries of Standard Webhooks take it."""
    return f"whsec_{base64.b64encode(key).decode()}"


def signed_headers(key: bytes, identifier: str, at_s: int, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks (standardwebhooks.com): the id, which is the same at each attempt, the time of
    the attempt and HMAC-SHA256 of both with the body."""
    content = f"{identifier}.{at_s}.".encode() + body
    signature = base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    return {"webhook-id": identifier, "webhook-timestamp": str(at_s), "webhook-signature": f"v1,{signature}"}
