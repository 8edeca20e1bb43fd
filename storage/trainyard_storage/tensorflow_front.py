"""Google's names of gs:// for TensorFlow, whose own client knows no other address.

It finds the storage emulator as its HTTPS proxy: a connection of TensorFlow to one of the names ends here, with a
certificate that only its program trusts. Whatever else a program calls through the proxy is passed on as it is.
"""

import asyncio
import base64
import hmac
import ipaddress
import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from trainyard_protocol.net.gcs import FRONT_USER
from trainyard_storage.google_files import system_roots
from trainyard_storage.storage_messages import Refused

Reach = Literal["all", "public", "none"]
"""What containers reach through the proxy: as this machine, public addresses of others alone, or nothing else."""

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_NAMES = ("www.googleapis.com", "storage.googleapis.com")
_PORT = 443
_CLIENTS = ("TSL", "TensorFlow/")  # what TensorFlow calls itself, now and in older versions
_LIFETIME = timedelta(days=3650)
_BLOCK = 1 << 16
_OPEN_S = 30.0
_MAX_TUNNELS = 512
_MAX_HEAD = 1 << 14
_METADATA = frozenset({"168.63.129.16"})  # of a cloud, at a public address


class TensorFlowFront:
    """The proxy's part of the storage emulator. Its certificate is in the directory, which is made once."""

    def __init__(self, directory: Path, secret: str | None, containers: Reach = "all") -> None:
        """`secret` None: each caller has its own. Raises OSError, ValueError for files that are not ours."""
        self._secret = secret
        self._containers = containers
        self._tunnels = 0
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = directory / "names.pem"
        if not file.exists():
            _make(file)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(file)
        certificate = _certificate(file.read_text("ascii"))
        self.roots = directory / "roots.pem"
        """What TensorFlow is to trust: the system's authorities, and ours."""
        draft = directory / ".roots.pem"
        draft.write_text(f"{system_roots(os.environ, self.roots)}\n{certificate}", encoding="utf-8")
        draft.chmod(0o644)  # containers have it under users of their own
        draft.replace(self.roots)

    def authorize(self, headers: Mapping[str, str]) -> str:
        """The caller's secret. Raises Refused without it."""
        scheme, _, given = headers.get("proxy-authorization", "").partition(" ")
        with suppress(ValueError):
            user, _, secret = base64.b64decode(given, validate=True).decode("ascii").partition(":")
            is_known = self._secret is None or hmac.compare_digest(secret.encode(), self._secret.encode())
            if scheme.lower() == "basic" and user == FRONT_USER and secret and is_known:
                return secret
        raise Refused(HTTPStatus.FORBIDDEN, "This proxy is for the jobs of this machine's agent.")

    def is_ours(self, target: str, headers: Mapping[str, str]) -> bool:
        """Whether the connection ends here: one of TensorFlow to Google's names. Others may want Google's own files."""
        host, _, port = target.rpartition(":")
        return host in _NAMES and port == str(_PORT) and headers.get("user-agent", "").startswith(_CLIENTS)

    async def tunnel(self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection on, until one side ends it. Raises Refused."""
        if self._tunnels >= _MAX_TUNNELS:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections at a time: try again.")
        self._tunnels += 1
        try:
            try:
                async with asyncio.timeout(_OPEN_S):
                    checked = await self.checked(target, str(writer.get_extra_info("sockname")[0]))
                    there, to_there = await _open(checked)
            except (OSError, TimeoutError, ValueError) as error:
                raise Refused(HTTPStatus.BAD_GATEWAY, f"{target} cannot be reached: {error}.") from error
            try:
                writer.write(ESTABLISHED)
                await asyncio.gather(_copy(reader, to_there), _copy(there, writer))
            finally:
                to_there.close()
        finally:
            self._tunnels -= 1

    async def checked(self, target: str, own: str) -> str:
        """The target, as an address where its name was looked up: a name may mean another one the next time.

        Programs of this machine, which call its loopback address `own`, are passed on anywhere. Raises Refused, OSError
        for an unknown name.
        """
        if self._containers == "all" or ipaddress.ip_address(own).is_loopback:
            return target
        if self._containers == "public":
            host, _, port = target.rpartition(":")
            look_up = asyncio.get_running_loop().getaddrinfo
            found = await look_up(host, int(port), family=socket.AF_INET, type=socket.SOCK_STREAM)
            address = str(found[0][4][0])
            if _is_public(address):
                return f"{address}:{port}"
        raise Refused(HTTPStatus.FORBIDDEN, f"Containers may not reach {target} through this proxy.")


def _is_public(text: str) -> bool:
    """Whether an IPv4 address is neither private nor this machine's."""
    import psutil

    address = ipaddress.IPv4Address(text)
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    return address.is_global and not address.is_multicast and text not in own | _METADATA


async def _open(target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to HOST:PORT, through the proxy of this process's environment if it has one."""
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    proxy = urlsplit(getproxies().get("https", ""))
    if not proxy.hostname or proxy_bypass(host):
        return await asyncio.open_connection(host, int(port))
    reader, writer = await asyncio.open_connection(proxy.hostname, proxy.port or 80)
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.username:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}")
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        writer.close()
        raise OSError("its proxy gave no answer") from error
    status = head[:_MAX_HEAD].split(b" ", 2)[1:2]
    if status != [b"200"]:
        writer.close()
        raise OSError(f"its proxy answered {b''.join(status).decode('latin-1')}")
    return reader, writer


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while block := await source.read(_BLOCK):
            target.write(block)
            await target.drain()
    with suppress(OSError, RuntimeError):
        target.write_eof()


def _certificate(pem: str) -> str:
    """The certificate behind its key."""
    return pem[pem.index("-----BEGIN CERTIFICATE-----") :]


def _make(file: Path) -> None:
    """Write a key and a certificate for Google's names, which is its own authority and no other's."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Trainyard's gs:// of this machine")])
    names = list(map(x509.DNSName, _NAMES))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.NameConstraints(names, None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(private + certificate.public_bytes(serialization.Encoding.PEM))
