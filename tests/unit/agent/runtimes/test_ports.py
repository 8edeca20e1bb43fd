import socket

import pytest

from trainyard_agent.runtimes import ports


def test_free_ports_leave_out_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        (first, *others) = ports.free_ports(4, set())
        listener.bind(("127.0.0.1", first))
        listener.listen()
        monkeypatch.setattr(ports, "_range", lambda: range(first, first + 1))
        with pytest.raises(ports.NoFreePort):
            ports.free_ports(1, set())
    monkeypatch.setattr(ports, "_range", lambda: range(others[0], others[0] + 1))
    assert ports.free_ports(1, set()) == [others[0]]
    with pytest.raises(ports.NoFreePort):
        ports.free_ports(1, {others[0]})
