"""Where the server listens, with which certificate, and which proxies it believes."""

import argparse
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.net.loopback import IPV4
from trainyard_protocol.views.google import DEFAULT_DOMAIN
from trainyard_server.config.certificate import Certificate

BACKLOG = 2048
"""Connections that wait in the kernel until they are accepted."""

_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))

Block = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """`certificate`: None for plain HTTP. `proxies`: the addresses that may connect, besides this machine; none: all.

    `X-Forwarded-Proto` and `X-Forwarded-For` are believed of `proxies` and this machine alone.
    """

    host: str = IPV4
    certificate: Certificate | None = None
    proxies: tuple[Block, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The host names in the certificate."""
        return self.certificate.names if self.certificate is not None else ()

    @property
    def believed(self) -> tuple[str, ...]:
        return tuple(map(str, (*_LOOPBACK, *self.proxies)))

    def admits(self, address: str) -> bool:
        """Whether a connection from the address is answered."""
        if not self.proxies:
            return True
        peer = ipaddress.ip_address(address.partition("%")[0])
        return any(peer in block for block in (*_LOOPBACK, *self.proxies))


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "network", "An address other than loopback needs a certificate, or a TLS proxy in front of it."
    )
    group.add_argument(
        "--host",
        default=IPV4,
        metavar="ADDRESS",
        help="the address to listen on, 0.0.0.0 for every one (IPv4) of this machine; of loopback's 127.0.0.1 and ::1 "
        "always both, since localhost is either; default: %(default)s",
    )
    group.add_argument("--port", type=int, default=8470, help="default: %(default)s")
    group.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="the server's certificate with those of its authorities (PEM): the server then speaks HTTPS, and answers "
        "to the names in it. It is read again when the file changes",
    )
    group.add_argument(
        "--tls-key", type=Path, metavar="FILE", help="the key of --tls-cert (PEM), which nobody else can read"
    )
    group.add_argument(
        "--google-port",
        type=int,
        metavar="PORT",
        help="serve HTTPS there, too, for Google's clients: by the names ml, logging, storage, oauth2, ... below "
        "--google-domain, with a certificate of an authority of the server's own; default: none",
    )
    group.add_argument(
        "--google-domain",
        default=DEFAULT_DOMAIN,
        metavar="NAME",
        help="the universe domain of these clients, without the port; default: %(default)s",
    )
    group.add_argument(
        "--behind-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="the address of a TLS proxy on another host or in a container, or its network such as 172.18.0.0/16; may "
        "be given several times. Only these and this machine may connect, and are believed in X-Forwarded-Proto and "
        "X-Forwarded-For",
    )


def checked_network(options: argparse.Namespace) -> NetworkOptions:
    """The options of the network. Raises InvalidArgument."""
    if (options.tls_cert is None) is not (options.tls_key is None):
        raise InvalidArgument("--tls-cert and --tls-key are needed together.")
    proxies = tuple(map(_block, options.behind_proxy))
    host = IPV4 if options.host == "localhost" else options.host
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError as error:
        raise InvalidArgument(
            f"--host takes an address of this machine, such as 0.0.0.0 for every one; this is {host!r}."
        ) from error
    if not loopback and options.tls_cert is None and not proxies:
        raise InvalidArgument(
            f"--host {host} is not a loopback address, and tokens must not cross a network in plain HTTP. Give "
            "--tls-cert and --tls-key for HTTPS, or --behind-proxy ADDRESS with the address of a TLS proxy; or listen "
            "on 127.0.0.1, with a tunnel or a proxy on this machine."
        )
    certificate = Certificate(options.tls_cert, options.tls_key) if options.tls_cert is not None else None
    return NetworkOptions(host, certificate, proxies)


def _block(text: str) -> Block:
    try:
        block = ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise InvalidArgument(
            f"--behind-proxy takes an address, or a network such as 172.18.0.0/16; this is {text!r}."
        ) from error
    if block.prefixlen == 0:
        raise InvalidArgument(
            f"--behind-proxy {text} is every address: anybody could connect without TLS and claim any address. Give "
            "that of the proxy."
        )
    return block
