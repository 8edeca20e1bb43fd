"""Rules of delivery: the pauses between attempts, the addresses that are refused, and the signature of a webhook."""

import base64
import hashlib
import hmac
import ipaddress
from collections.abc import Sequence, Set
from datetime import timedelta

GIVE_UP_AFTER = timedelta(days=3)
"""From the first attempt on; then a notification has failed."""

_FIRST_PAUSE_S = 10.0
_LONGEST_PAUSE_S = 900.0
_GONE = 410

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_METADATA = "cloud metadata"
_REFUSED = {
    ipaddress.ip_network("0.0.0.0/8"): "unspecified",
    ipaddress.ip_network("100.100.100.200/32"): _METADATA,  # Alibaba Cloud
    ipaddress.ip_network("168.63.129.16/32"): _METADATA,  # Azure
    ipaddress.ip_network("192.0.0.0/24"): _METADATA,  # Oracle; otherwise of protocols
    ipaddress.ip_network("fd00:ec2::/32"): _METADATA,  # AWS
    ipaddress.ip_network("fd20:ce::254/128"): _METADATA,  # Google Cloud
    ipaddress.ip_network("fd00:c1::a9fe:a9fe/128"): _METADATA,  # Oracle
    ipaddress.ip_network("fd00:42::42/128"): _METADATA,  # Scaleway
}
"""Networks beyond the classes of `ipaddress`."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def pause(attempts: int) -> timedelta:
    """The pause after so many attempts, from 10 s on twice as long each time, at most 15 minutes."""
    return timedelta(seconds=min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempts - 1, 10)))


def is_final(status: int) -> bool:
    """Whether a receiver that answers so wants no further attempt."""
    return status == _GONE


def is_of_receiver(status: int) -> bool:
    """Whether an answer is about the receiver itself, and not about what was sent to it."""
    return status >= 500 or status in (408, 425, 429)


def refused_address(text: str, own: Set[Address] = frozenset()) -> str:
    """The kind of an IP address that nothing is sent to, "" for another address: there are the services of this
    machine, and the metadata of a cloud. `own`: the addresses of this machine. Private networks are allowed."""
    address = ipaddress.ip_address(text.partition("%")[0])
    carried = _carried(address)
    if not own.isdisjoint((address, *carried)):
        return "this machine's own"
    return next(filter(None, map(_refused_kind, carried or (address,))), "")


def _carried(address: Address) -> Sequence[ipaddress.IPv4Address]:
    """The IPv4 addresses that a translator or a tunnel makes of an IPv6 address."""
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    if address in _NAT64:
        return (ipaddress.IPv4Address(int(address) & 0xFFFFFFFF),)
    single = address.ipv4_mapped or address.sixtofour
    return (single,) if single else address.teredo or ()


def _refused_kind(address: Address) -> str:
    kinds = {
        "loopback": address.is_loopback,
        "link-local": address.is_link_local,
        "unspecified": address.is_unspecified,
        "multicast": address.is_multicast,
        "reserved": address.is_reserved,
    }
    named = next((kind for kind, applies in kinds.items() if applies), "")
    return named or next((kind for network, kind in _REFUSED.items() if address in network), "")


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
