"""The Python client: arguments of a program, and waits while the server is away."""

import pytest

import trainyard
from trainyard import client
from trainyard.client import Job, WaitTimeout
from trainyard_cli.client import Client
from trainyard_cli.settings import Server
from trainyard_cli.v1_client import RETRY_DELAYS
from trainyard_protocol.errors import InvalidArgument
from unit.cli.scripted_server import CUT, scripted_server


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


def test_package_lists_what_it_has() -> None:
    assert set(trainyard.__all__) <= set(dir(trainyard))


def test_wait_is_over_in_time_also_where_the_server_does_not_answer() -> None:
    """A call by itself is tried for two minutes."""
    pauses: list[float] = []
    with scripted_server() as script, Client(Server(script.url, "t"), "p", sleep=pauses.append) as client:
        script.answers = [CUT] * 100
        with pytest.raises(WaitTimeout, match="is still RUNNING after 0 s"):
            Job(client, {"jobId": "j", "state": "RUNNING"}).wait(timeout=0)
    assert pauses == list(RETRY_DELAYS)
