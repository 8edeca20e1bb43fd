"""An authority for an address: what clients that trust it accept."""

import socket
import ssl
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trainyard_storage.authority import OwnAuthority

ADDRESS = "127.0.0.1"
"""Any does: a client checks the name that it was told."""


def greet(authority: OwnAuthority, ca: str, name: str) -> None:
    """Connect as to that name. Raises SSLError."""
    client = ssl.create_default_context(cadata=ca)
    here, there = socket.socketpair()
    with here, there:
        server = threading.Thread(target=_accept, args=(authority, there))
        server.start()
        try:
            client.wrap_socket(here, server_hostname=name).close()
        finally:
            here.close()
            server.join()


def _accept(authority: OwnAuthority, there: socket.socket) -> None:
    try:
        authority.context.wrap_socket(there, server_side=True).close()
    except (ssl.SSLError, OSError):
        """The client says why."""


@pytest.mark.parametrize("names", [(ADDRESS,), ("fd00::7",), ("trains.example.com", ADDRESS)])
def test_certificate_for_an_address_or_a_name_is_accepted_for_it_alone(tmp_path: Path, names: tuple[str, ...]) -> None:
    authority = OwnAuthority(tmp_path / "authority.pem", names, names)
    authority.refresh(datetime.now(UTC))
    for name in names:
        greet(authority, authority.ca, name)
    with pytest.raises(ssl.SSLError, match="mismatch"):
        greet(authority, authority.ca, "10.0.0.9")


@pytest.mark.parametrize("own", [ADDRESS, "trains.example.com"])
@pytest.mark.parametrize("stolen", ["10.0.0.9", "fd00::9", "mail.example.com"])
def test_authority_of_an_address_or_a_name_signs_for_nothing_else(tmp_path: Path, own: str, stolen: str) -> None:
    file = tmp_path / "authority.pem"
    ca = OwnAuthority(file, [own], [own]).ca
    thief = OwnAuthority(file, [own], [stolen])
    thief.refresh(datetime.now(UTC))
    with pytest.raises(ssl.SSLError, match="permitted subtree violation"):
        greet(thief, ca, stolen)
