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
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from trainyard_protocol.net.gcs import PROXY_USER
from trainyard_storage.authority import OwnAuthority
from trainyard_storage.batch import message
from trainyard_storage.google_files import system_roots
from trainyard_storage.messages import Refused

Reach = Literal["all", "public", "none"]
"""What containers reach through the proxy: as this machine, public addresses of others alone, or nothing else."""

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_NAMES = ("www.googleapis.com", "storage.googleapis.com")
_PORT = 443
_CLIENTS = ("TSL", "TensorFlow/")  # what TensorFlow calls itself, now and in older versions
_BLOCK = 1 << 16
_OPEN_S = 30.0
_MAX_TUNNELS = 512
_MAX_HEAD = 1 << 14
_METADATA = frozenset({"168.63.129.16"})  # of a cloud, at a public address


class TensorFlowProxy:
    """The proxy's part of the storage. Its authority is in the directory, and made once."""

    def __init__(self, directory: Path, secret: str | None, containers: Reach = "all") -> None:
        """`secret` None: each caller has its own. Raises OSError, ValueError for files that are not ours."""
        self._secret = secret
        self._containers = containers
        self._tunnels = 0
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._authority = OwnAuthority(directory / "authority.pem", _NAMES, _NAMES)
        self.roots = directory / "roots.pem"
        """What TensorFlow is to trust: the system's authorities, and ours."""
        draft = directory / ".roots.pem"
        draft.write_text(f"{system_roots(os.environ, self.roots)}\n{self._authority.ca}", encoding="utf-8")
        draft.chmod(0o644)  # containers have it under users of their own
        draft.replace(self.roots)

    def context(self) -> ssl.SSLContext:
        """TLS with a certificate for Google's names."""
        self._authority.refresh(datetime.now(UTC))
        return self._authority.context

    def secret(self, headers: Mapping[str, str]) -> str:
        """The caller's secret; "" where it has none that may use the proxy."""
        scheme, _, given = headers.get("proxy-authorization", "").partition(" ")
        with suppress(ValueError):
            user, _, secret = base64.b64decode(given, validate=True).decode("ascii").partition(":")
            is_known = self._secret is None or hmac.compare_digest(secret.encode(), self._secret.encode())
            if scheme.lower() == "basic" and user == PROXY_USER and is_known:
                return secret
        return ""

    def is_ours(self, target: str, headers: Mapping[str, str]) -> bool:
        """Whether the connection ends here: one of TensorFlow to Google's names. Others may want Google's own files."""
        host, _, port = target.rpartition(":")
        return host in _NAMES and port == str(_PORT) and headers.get("user-agent", "").startswith(_CLIENTS)

    async def tunnel(self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection on, until one side ends it."""
        self._tunnels += 1
        try:
            there, to_there = await self._reached(target, str(writer.get_extra_info("sockname")[0]))
            try:
                writer.write(ESTABLISHED)
                await asyncio.gather(_copy(reader, to_there), _copy(there, writer))
            finally:
                to_there.close()
        except Refused as refused:
            writer.write(message(refused.status, {}, refused.message.encode()))
        finally:
            self._tunnels -= 1
            writer.close()

    async def _reached(self, target: str, own: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises Refused."""
        if self._tunnels > _MAX_TUNNELS:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections at a time: try again.")
        try:
            async with asyncio.timeout(_OPEN_S):
                return await _open(await self.checked(target, own))
        except (OSError, TimeoutError, ValueError) as error:
            raise Refused(HTTPStatus.BAD_GATEWAY, f"{target} cannot be reached: {error}.") from error

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
            resolved = await look_up(host, int(port), family=socket.AF_INET, type=socket.SOCK_STREAM)
            address = str(resolved[0][4][0])
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
    from urllib.request import getproxies, proxy_bypass  # here: a start without a tunnel does not load it

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
