"""The block of names in a hosts file, and the name for browsers."""

import pytest

from trainyard_cli.capabilities.google import host_names
from trainyard_cli.local import browser_address
from trainyard_cli.settings import Server
from trainyard_protocol.net import loopback

NAMES = ["ml.trainyard.localhost", "storage.trainyard.localhost"]


@pytest.mark.parametrize("text", ["", "127.0.0.1 localhost\n", "127.0.0.1 a\n\n# mine\n"])
def test_block_comes_once_and_goes_without_a_trace(text: str) -> None:
    once = host_names.with_block(text, NAMES)
    assert once.startswith(text)
    assert "\n127.0.0.1 ml.trainyard.localhost storage.trainyard.localhost\n" in once
    assert host_names.with_block(once, NAMES) == once
    assert host_names.without_block(f"{once}127.0.0.2 later\n") == f"{text}127.0.0.2 later\n"


def test_block_whose_end_was_removed_is_left_alone() -> None:
    text = host_names.with_block("", NAMES).replace("# trainyard end\n", "127.0.0.1 mine\n")
    assert host_names.without_block(text) == text


def test_localhost_is_known_and_an_unknown_name_is_not() -> None:
    assert host_names.unresolved(["localhost", "ml.trainyard.invalid"]) == ["ml.trainyard.invalid"]


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
