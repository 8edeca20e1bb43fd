"""Both addresses of loopback: who holds one leaves none to others."""

import errno
import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.net import loopback
from trainyard_protocol.net.loopback import IPV4, IPV6

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
PORT = 8470


def listening(stack: ExitStack, host: str, port: int = 0) -> list[socket.socket]:
    return [stack.enter_context(listener) for listener in loopback.listen(host, port, 1)]


@pytest.mark.parametrize("host", [IPV4, IPV6, "0.0.0.0", "::", "0:0:0:0:0:0:0:1"])
def test_host_with_one_address_of_loopback_listens_on_both(host: str) -> None:
    with ExitStack() as stack:
        port = listening(stack, host)[0].getsockname()[1]
        assert loopback.is_held_by_one_user(port)
        assert {loopback.user_of(IPV4, port), loopback.user_of(IPV6, port)} == {os.geteuid()}
        for address in (IPV4, IPV6):
            socket.create_connection((address, port), 10).close()
            with pytest.raises(FailedPrecondition, match=r"Address already in use\. End the program"):
                listening(stack, address, port)


@pytest.mark.parametrize(("host", "taken"), [(IPV4, IPV6), (IPV6, IPV4)])
def test_port_whose_other_address_is_taken_is_refused_and_left(host: str, taken: str) -> None:
    family = socket.AF_INET6 if ":" in taken else socket.AF_INET
    with ExitStack() as stack:
        other = stack.enter_context(socket.create_server((taken, 0), family=family))
        port = other.getsockname()[1]
        assert not loopback.is_free(port)
        assert not loopback.is_held_by_one_user(port)
        with pytest.raises(FailedPrecondition, match=rf"cannot listen on \[?{taken}\]?:{port}: Address already"):
            listening(stack, host, port)
        assert loopback.user_of(host, port) is None, "the address that was bound first is free again"


@pytest.mark.parametrize("code", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_machine_without_ipv6_listens_on_what_it_has(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    bind = loopback._bound

    def without_ipv6(host: str, port: int) -> socket.socket:
        if ":" in host:
            raise OSError(code, os.strerror(code))
        return bind(host, port)

    monkeypatch.setattr(loopback, "_bound", without_ipv6)
    with ExitStack() as stack:
        (listener,) = listening(stack, IPV4)
        port = listener.getsockname()[1]
        assert not loopback.is_free(port)
        assert not loopback.is_held_by_one_user(port), "whoever turns IPv6 on would get what is for the name"
        with pytest.raises(FailedPrecondition, match="cannot listen on"):
            listening(stack, IPV6, port)
    assert loopback.is_free(loopback.free_port())


def test_port_of_two_users_is_not_that_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ipv4, ipv6 = loopback._kernel_form(IPV4), loopback._kernel_form(IPV6)
    any4, any6 = loopback._kernel_form("0.0.0.0"), loopback._kernel_form("::")
    cases = {
        "one user": ([(ipv4, 7)], [(ipv6, 7)], True),
        "another at ::1": ([(ipv4, 7)], [(ipv6, 8)], False),
        "another at every address of IPv6": ([(ipv4, 7)], [(any6, 8)], False),
        "one at every address": ([], [(any6, 7)], True),
        "every address of IPv4 and ::1": ([(any4, 7)], [(ipv6, 7)], True),
        "IPv4 alone": ([(ipv4, 7)], [], False),
        "nobody": ([], [], False),
        "users without an id here": ([(ipv4, loopback._overflow_user())], [(ipv6, loopback._overflow_user())], False),
    }
    tables = (tmp_path / "tcp", tmp_path / "tcp6")
    monkeypatch.setattr(loopback, "_TABLES", tables)
    held = {}
    for name, (of_ipv4, of_ipv6, _) in cases.items():
        for table, rows in zip(tables, (of_ipv4, of_ipv6), strict=True):
            lines = [f"   0: {address}:{PORT:04X} 0:0 0A 0:0 00:0 0 {user} 0 1\n" for address, user in rows]
            connection = f"   9: {ipv4}:{PORT:04X} {ipv4}:9999 01 0:0 00:0 0 9 0 1\n"
            table.write_text(HEADER + connection + "".join(lines))
        held[name] = loopback.is_held_by_one_user(PORT)
    assert held == {name: expected for name, (_, _, expected) in cases.items()}
    for table in tables:
        table.unlink()
    assert not loopback.is_held_by_one_user(PORT), "a machine that does not tell"
