"""The address at which other machines reach this one."""

import psutil
import pytest

from trainyard_agent.peers.reach import Reach, address_towards, own_address


def test_server_on_this_machine_gives_no_address() -> None:
    assert address_towards("http://127.0.0.1:8470") == ""
    assert address_towards("http://no-such-host.invalid") == ""


def test_address_has_an_interface_and_is_one_of_this_machine() -> None:
    interface = Reach("127.0.0.1").interface
    assert "127.0.0.1" in [address.address for address in psutil.net_if_addrs()[interface]]
    assert Reach().interface == ""
    for text in ("127.0.0.1", "0.0.0.0", "203.0.113.7"):
        with pytest.raises(ValueError, match="is not an address at which other machines"):
            own_address(text)
    with pytest.raises(ValueError, match="must be an IP address"):
        own_address("box-1")
