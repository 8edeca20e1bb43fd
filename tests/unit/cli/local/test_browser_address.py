"""The name of a server for browsers."""

import pytest

from trainyard_cli.local import browser_address
from trainyard_cli.settings import Server
from trainyard_protocol.net import loopback


def test_dashboard_has_a_name_only_where_one_user_holds_all_it_means(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = (
        # server, both addresses are held by one user, address for browsers
        ("http://127.0.0.1:8470", True, "http://trainyard.localhost:8470"),
        ("http://localhost", True, "http://trainyard.localhost"),
        ("http://[::1]:8470/yard", True, "http://trainyard.localhost:8470/yard"),
        ("http://127.0.0.1:8470", False, "http://127.0.0.1:8470"),
        ("http://localhost:8470/yard", False, "http://127.0.0.1:8470/yard"),
        ("http://[::1]:8470", False, "http://[::1]:8470"),
        ("https://localhost:8470", True, "https://localhost:8470"),  # a proxy's certificate names it
        ("http://trains.example", True, "http://trains.example"),
    )
    shown = []
    for url, held, _ in cases:
        monkeypatch.setattr(loopback, "is_held_by_one_user", lambda _, held=held: held)
        shown.append((url, held, browser_address.dashboard_url(Server(url, "t"))))
    assert shown == list(cases)
