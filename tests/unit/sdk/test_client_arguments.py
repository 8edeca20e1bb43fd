"""Arguments of a program, as the Python client takes them."""

import pytest

import trainyard
from trainyard import client
from trainyard_protocol.errors import InvalidArgument


def test_arguments_are_words_or_flags_of_a_mapping() -> None:
    rows: list[tuple[object, tuple[str, ...]]] = [
        (["--lr", 0.1], ("--lr", "0.1")),
        ((), ()),
        ({"lr": 0.1, "--name": "a b", "n": -1}, ("--lr=0.1", "--name=a b", "--n=-1")),
        ({"verbose": True, "quiet": False, "seed": None}, ("--verbose",)),
        ({"-v": True, "-D": ["a=1"]}, ("-v", "-D=a=1")),
        ({"layer": [64, 32]}, ("--layer=64", "--layer=32")),
        ({}, ()),
    ]
    assert [(given, client._words(given)) for given, wanted in rows if client._words(given) != wanted] == []


@pytest.mark.parametrize("given", ["--lr 0.1", b"x", 5, {"lr": {"a": 1}}])
def test_arguments_of_another_kind_are_refused(given: object) -> None:
    with pytest.raises(InvalidArgument, match="args"):
        client._words(given)


def test_project_that_there_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^project: 'Foo Bar' is not a project id"):
        client.Client(project="Foo Bar")


def test_package_lists_what_it_has() -> None:
    assert set(trainyard.__all__) <= set(dir(trainyard))
