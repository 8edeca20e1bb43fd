"""Loopback's two addresses, held together, and who listens on them.

`localhost` and every name below it mean 127.0.0.1 and ::1, and browsers try ::1 first. A service that holds one address
leaves the other to any user of the machine, who then gets its sign-in codes, cookies and tokens.
"""

import errno
import ipaddress
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from trainyard_protocol.errors import FailedPrecondition

IPV4, IPV6 = "127.0.0.1", "::1"

_ALL_IPV4, _ALL_IPV6 = "0.0.0.0", "::"  # noqa: S104 - an operator names them
_COMPANIONS = {IPV4: IPV6, _ALL_IPV4: IPV6, IPV6: IPV4, _ALL_IPV6: IPV4}
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # this machine has no such address: nobody can hold it
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"
_OVERFLOW_USER = Path("/proc/sys/kernel/overflowuid")


def is_address(host: str) -> bool:
    """Whether a host is an IP address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen on `host`, and where it is or includes one address of loopback, on the other one too, unless
    this machine does not have it. Raises FailedPrecondition."""
    listeners = [_listening(host, port, backlog)]
    companion = _companion(host)
    if companion is not None:
        try:
            listeners.append(_listening(companion, listeners[0].getsockname()[1], backlog))
        except FailedPrecondition as error:
            if not _is_absent(error.__cause__):
                listeners[0].close()
                raise
    return listeners


def is_free(port: int) -> bool:
    """Whether both addresses can be bound."""
    for address in (IPV4, IPV6):
        try:
            _bound(address, port).close()
        except OSError as error:
            if not _is_absent(error):
                return False
    return True


def free_port() -> int:
    """A port that is free on both addresses."""
    while True:
        with _bound(IPV4, 0) as probe:
            port: int = probe.getsockname()[1]
        if is_free(port):
            return port


def user_of(address: str, port: int) -> int | None:
    """The id of the user who listens there, by itself or on every address of its family; None for nobody, and where
    this machine does not tell."""
    exact = ipaddress.ip_address(address)
    wildcards = [_ALL_IPV4, _ALL_IPV6] if exact.version == 4 else [_ALL_IPV6]
    users = dict(_listening_users(port))
    for candidate in (str(exact), *wildcards):
        if (user := users.get(_kernel_form(candidate))) is not None:
            return None if user == _overflow_user() else user
    return None


def is_held_by_one_user(port: int) -> bool:
    """Whether one user listens on both addresses. False where this machine does not tell."""
    user = user_of(IPV4, port)
    return user is not None and user == user_of(IPV6, port)


def _companion(host: str) -> str | None:
    try:
        address = ipaddress.ip_address(host)  # `0:0:0:0:0:0:0:1` is ::1
    except ValueError:
        return None
    return _COMPANIONS.get(str(address))


def _listening(host: str, port: int, backlog: int) -> socket.socket:
    try:
        listener = _bound(host, port)
        try:
            listener.listen(backlog)
        except OSError:
            listener.close()
            raise
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        shown = f"[{host}]" if ":" in host else host
        is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        hint = " End the program that does, or choose another port." if is_taken else ""
        raise FailedPrecondition(f"cannot listen on {shown}:{port}: {reason}.{hint}") from error
    return listener


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol: asyncio sets TCP_NODELAY on no other, and then an answer waits 40 ms for the client's ACK.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # one kind of address to compare
        bound.bind((host, port))
    except (OSError, OverflowError):
        bound.close()
        raise
    return bound


def _is_absent(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in _ABSENT


def _listening_users(port: int) -> Iterator[tuple[str, int]]:
    """The kernel's form of each address that is listened on at the port, and the id of the user."""
    suffix = f":{port:04X}"
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue  # no Linux, or no such family
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTENING and columns[1].endswith(suffix):
                yield columns[1].removesuffix(suffix), int(columns[7])


def _kernel_form(address: str) -> str:
    """The address as in /proc/net: words of 32 bits in the byte order of this machine."""
    packed = ipaddress.ip_address(address).packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def _overflow_user() -> int:
    """The id shown for every user who has none in this user namespace."""
    try:
        return int(_OVERFLOW_USER.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 65534
