"""The block of names in a hosts file."""

import pytest

from trainyard_cli.capabilities.google import host_names

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
