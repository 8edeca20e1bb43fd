"""Names of Services and their pods, as CoreDNS answers them, which Debian does not have. Standard library alone.

    python dns.py ADDRESS API-SERVER CA CERTIFICATE KEY

It follows the Endpoints of the cluster and answers at port 53 of the address. There are A records of headless
Services and of pods with a host name in them; a name that exists and has no such record gets an empty answer, an
unknown one NXDOMAIN. Answers are good for no time at all.
"""

import json
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.request
from typing import Any

_DOMAIN = "svc.cluster.local"
_A, _IN = 1, 1
_NO_ERROR, _NO_SUCH_NAME = 0, 3
_TIMEOUT_S, _PAUSE_S = 10, 0.2

Records = dict[str, list[str]]


class Names:
    """Records of the cluster, by namespace and name of the Endpoints."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], Records] = {}

    def replace(self, items: list[dict[str, Any]]) -> None:
        self._records = {_key(item): _records(item) for item in items}

    def addresses(self, name: str) -> list[str] | None:
        """None: no such name."""
        parts = name.removesuffix(f".{_DOMAIN}").split(".")
        if not name.endswith(f".{_DOMAIN}") or len(parts) < 2:
            return None
        return self._records.get((parts[-1], parts[-2]), {}).get(name)


def _key(item: dict[str, Any]) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _records(item: dict[str, Any]) -> Records:
    namespace, service = _key(item)
    name = f"{service}.{namespace}.{_DOMAIN}"
    records: Records = {name: []}
    for subset in item.get("subsets") or ():
        for address in subset.get("addresses") or ():
            records[name].append(address["ip"])
            if host := address.get("hostname"):
                records.setdefault(f"{host}.{name}", []).append(address["ip"])
    return records


def answer(query: bytes, names: Names) -> bytes:
    position, labels = 12, []
    while length := query[position]:
        labels.append(query[position + 1 : position + 1 + length].decode("ascii", "replace"))
        position += length + 1
    kind, _ = struct.unpack(">HH", query[position + 1 : position + 5])
    question = query[12 : position + 5]
    found = names.addresses(".".join(labels).lower())
    given = found if found and kind == _A else []
    code = _NO_SUCH_NAME if found is None else _NO_ERROR
    header = struct.pack(">HHHHH", 0x8580 | code, 1, len(given), 0, 0)
    record = b"\xc0\x0c" + struct.pack(">HHIH", _A, _IN, 0, 4)
    return query[:2] + header + question + b"".join(record + socket.inet_aton(ip) for ip in given)


def _follow(server: str, tls: ssl.SSLContext, names: Names) -> None:
    """List the Endpoints again and again: there are few."""
    while True:
        try:
            with urllib.request.urlopen(f"{server}/api/v1/endpoints", timeout=_TIMEOUT_S, context=tls) as listed:
                names.replace(json.load(listed)["items"])
        except (OSError, ValueError) as error:
            print(error, flush=True)
        time.sleep(_PAUSE_S)


def main(own_address: str, server: str, authority: str, certificate: str, key: str) -> None:
    tls = ssl.create_default_context(cafile=authority)
    tls.load_cert_chain(certificate, key)
    names = Names()
    threading.Thread(target=_follow, args=(server, tls, names), daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind((own_address, 53))
        while True:
            query, sender = listening.recvfrom(512)
            try:
                listening.sendto(answer(query, names), sender)
            except (IndexError, struct.error, OSError) as error:
                print(f"a question that is none, of {sender}: {error!r}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
