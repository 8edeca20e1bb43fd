"""The address at which other machines reach the local service: `trainyard up --listen ADDRESS`."""

import ipaddress
import socket
from collections.abc import Iterator

from trainyard_cli.local.options import Options
from trainyard_protocol.errors import InvalidArgument


def own_address(text: str) -> str:
    """The IP address of this machine that is given, or that a host name leads to. Raises InvalidArgument."""
    try:
        found = socket.getaddrinfo(text, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(
            f"--listen: {text} is neither an IP address nor a host name that resolves to one. {_ours()}"
        ) from error
    addresses = [str(item[4][0]).partition("%")[0] for item in found]
    ours = set(_addresses())
    own = next((address for address in addresses if address in ours), None)
    if own is not None:
        return own
    resolved = "" if text in addresses else f" resolves to {', '.join(dict.fromkeys(addresses))}, which"
    raise InvalidArgument(
        f"--listen: {text}{resolved} is not an address at which other machines can reach this one. {_ours()}"
    )


def addresses_of_this_machine() -> list[str]:
    """Those at which others may reach it, IPv4 first; without those of bridges that lead nowhere now."""
    return sorted(set(_addresses(only_running=True)), key=lambda address: (":" in address, address))


def url_of(options: Options) -> str:
    """The address of the service for other machines; "" for none."""
    if not options.listen:
        return ""
    host = f"[{options.listen}]" if ":" in options.listen else options.listen
    return f"https://{host}:{options.server_port}"


def _ours() -> str:
    ours = addresses_of_this_machine()
    return f"This machine has {', '.join(ours)}." if ours else "This machine has no address in a network."


def _addresses(*, only_running: bool = False) -> Iterator[str]:
    import psutil

    states = psutil.net_if_stats() if only_running else {}
    for name, items in psutil.net_if_addrs().items():
        if name in states and not states[name].isup:
            continue
        for item in items:
            if item.family in (socket.AF_INET, socket.AF_INET6) and "%" not in item.address:
                address = ipaddress.ip_address(item.address)
                if not (address.is_loopback or address.is_unspecified or address.is_link_local):
                    yield str(address)
