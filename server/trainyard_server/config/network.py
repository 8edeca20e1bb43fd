"""Settings of the network: the address, the certificate, and the proxies that the server believes."""

import ipaddress
import re
import socket
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trainyard_protocol.answers.google import DEFAULT_DOMAIN
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.net.loopback import IPV4
from trainyard_protocol.settings import setting
from trainyard_server.config.certificate import Certificate

BACKLOG = 2048
"""Connections that wait in the kernel until they are accepted."""

_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.ASCII | re.IGNORECASE)
_LONGEST_NAME = 253

Block = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_host_name(text: str) -> str:
    """A host name, without scheme, port and wildcards. Raises InvalidArgument."""
    if len(text) > _LONGEST_NAME or not _NAME.fullmatch(text):
        raise InvalidArgument(f"takes a name without scheme and port, such as trainyard.example.com; this is {text!r}.")
    return text


def _host(text: str) -> str:
    host = IPV4 if text == "localhost" else text
    try:
        ipaddress.ip_address(host)
    except ValueError as error:
        raise InvalidArgument(
            f"takes an address of this machine, such as 0.0.0.0 for every one; this is {text!r}."
        ) from error
    return host


def _block(text: str) -> Block:
    try:
        block = ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise InvalidArgument(f"takes an address, or a network such as 172.18.0.0/16; this is {text!r}.") from error
    if block.prefixlen == 0:
        raise InvalidArgument(
            f"{text} is every address: anybody could connect without TLS and claim any address. Give that of the proxy."
        )
    return block


def _https_address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return read_host_name(text).lower()


def _peer_url(text: str) -> str:
    scheme, _, host = text.partition("://")
    if scheme not in ("http", "https") or not host.strip("/") or len(text) > _LONGEST_NAME:
        raise InvalidArgument(f"takes http://HOST:PORT or https://HOST:PORT; this is {text!r}.")
    return text.rstrip("/")


def _domain(text: str) -> str:
    return read_host_name(text).lower()


@dataclass(frozen=True)
class NetworkSettings:
    """Settings of the network. `X-Forwarded-Proto` and `X-Forwarded-For` are believed of `proxies` and this machine
    alone."""

    host: str = setting(
        IPV4,
        "the address to listen on, `0.0.0.0` for every one (IPv4) of this machine; of loopback's `127.0.0.1` and `::1` "
        "always both, since `localhost` is either",
        metavar="ADDRESS",
        read=_host,
    )
    port: int = setting(8470, "the port to listen on", metavar="PORT")
    https_address: str = setting(
        "",
        "listen there too, at the same port, with HTTPS for other machines: an address of this machine, or a host name "
        "that resolves to one. The certificate is of the server's own authority, which is `ca.pem` in its data "
        "directory. `trainyard up --listen` gives it ([a second machine](../tutorials/second-machine.md))",
        metavar="ADDRESS",
        read=_https_address,
        default_text="none",
    )
    tls_cert: Path | None = setting(
        None,
        "the server's certificate with those of its authorities (PEM): the server then speaks HTTPS, and answers to "
        "the names in it. It is read again when the file changes",
        metavar="FILE",
    )
    tls_key: Path | None = setting(None, "the key of `--tls-cert` (PEM), which nobody else can read", metavar="FILE")
    google_port: int = setting(
        0,
        "serve HTTPS there, too, for Google's clients: by the names ml, logging, storage, oauth2, ... below "
        "`--google-domain`, with a certificate of an authority of the server's own "
        "([clients](../coming-from/google.md#use-gcloud-and-googles-clients-without-an-edit))",
        metavar="PORT",
        default_text="none",
    )
    google_domain: str = setting(
        DEFAULT_DOMAIN, "the universe domain of these clients, without the port", metavar="NAME", read=_domain
    )
    peer_url: str = setting(
        "",
        "where the other servers on the same database reach this one, such as `https://trainyard-2.example.com:8470`: "
        "a command in a replica may come to one server and its agent to another",
        metavar="URL",
        read=_peer_url,
        default_text="the server's own address, for servers on one machine",
    )
    proxies: tuple[Block, ...] = setting(
        (),
        "the address of a TLS proxy on another host or in a container, or its network such as `172.18.0.0/16`. Only "
        "these and this machine may connect, and are believed in `X-Forwarded-Proto` and `X-Forwarded-For`",
        "--behind-proxy",
        metavar="ADDRESS",
        read=_block,
    )

    def check(self) -> None:
        """Raises InvalidArgument for settings that do not go together, and for a certificate that cannot be used."""
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise InvalidArgument("--tls-cert and --tls-key are needed together.")
        if self.https_address:
            if self.tls_cert is not None or self.proxies or not ipaddress.ip_address(self.host).is_loopback:
                raise InvalidArgument(
                    "--https-address needs a loopback --host and cannot be combined with --tls-cert or --behind-proxy."
                )
            own = ipaddress.ip_address(self.own_address)
            if own.is_loopback or own.is_unspecified:
                raise InvalidArgument(f"--https-address {self.https_address}: other machines do not reach {own}.")
        if self.certificate is None and not self.proxies and not ipaddress.ip_address(self.host).is_loopback:
            raise InvalidArgument(
                f"--host {self.host} is not a loopback address, and tokens must not cross a network in plain HTTP. "
                "Give --tls-cert and --tls-key for HTTPS, or --behind-proxy ADDRESS with the address of a TLS proxy; "
                "or listen on 127.0.0.1, with a tunnel or a proxy on this machine."
            )

    @cached_property
    def certificate(self) -> Certificate | None:
        """The certificate; None for plain HTTP. Raises InvalidArgument."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return Certificate(self.tls_cert, self.tls_key)

    @property
    def names(self) -> tuple[str, ...]:
        """The host names in the certificate."""
        own = (self.https_address,) if self.https_address else ()
        return self.certificate.names if self.certificate is not None else own

    @cached_property
    def own_address(self) -> str:
        """The address of `https_address`; "" without one. Raises InvalidArgument."""
        if not self.https_address:
            return ""
        try:
            found = socket.getaddrinfo(self.https_address, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise InvalidArgument(
                f"--https-address {self.https_address} cannot be resolved: {error.strerror}."
            ) from error
        return str(found[0][4][0])

    def url_here(self, port: int) -> str:
        """The URL for other processes of this machine."""
        address = ipaddress.ip_address(self.host)
        host = IPV4 if address.is_unspecified else f"[{address}]" if address.version == 6 else str(address)
        return f"{'http' if self.certificate is None else 'https'}://{host}:{port}"

    @property
    def universe_domain(self) -> str:
        """The universe domain of Google's clients, with the port; "" without one."""
        return f"{self.google_domain}:{self.google_port}" if self.google_port else ""

    @property
    def believed(self) -> tuple[str, ...]:
        return tuple(map(str, (*_LOOPBACK, *self.proxies)))

    def admits(self, address: str) -> bool:
        """Whether a connection from the address is answered."""
        if not self.proxies:
            return True
        peer = ipaddress.ip_address(address.partition("%")[0])
        return any(peer in block for block in (*_LOOPBACK, *self.proxies))
