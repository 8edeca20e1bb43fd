from pathlib import Path
from typing import Any

import pytest

from trainyard_cli.settings import Server, Target, default_state_dir, remote_server
from trainyard_protocol.errors import InvalidArgument

URL = "https://trains.example:8470"


def target(**changes: Any) -> Target:
    return Target(**{"state_dir": Path("/s"), **changes})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TRAINYARD_STATE_DIR": "/a", "XDG_STATE_HOME": "/b"}, Path("/a")),
        ({"XDG_STATE_HOME": "/b"}, Path("/b/trainyard")),
        ({"XDG_STATE_HOME": "relative"}, Path.home() / ".local/state/trainyard"),
        ({}, Path.home() / ".local/state/trainyard"),
    ],
)
def test_state_dir_comes_from_the_first_that_is_set(environment: dict[str, str], expected: Path) -> None:
    assert default_state_dir(environment) == expected


def test_flags_are_those_that_were_given() -> None:
    assert target().flags == ""
    given = target(server=URL, token_file=Path("my token"), project="q", local=True)
    assert given.flags == f" --server {URL} --token-file 'my token' --project q --state-dir /s"


def test_remote_server_with_nothing_configured_is_none() -> None:
    assert remote_server(target(), {"TRAINYARD_TOKEN": "t"}) is None


def test_remote_server_from_the_environment_has_its_token() -> None:
    found = remote_server(target(), {"TRAINYARD_SERVER": f"{URL}/", "TRAINYARD_TOKEN": " t\n"})
    assert found == Server(URL, "t")


def test_remote_server_flag_wins_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    given = target(server=URL, token_file=tmp_path / "token")
    found = remote_server(given, {"TRAINYARD_SERVER": "http://other", "TRAINYARD_TOKEN": "other"})
    assert found == Server(URL, "from-file")


def test_remote_server_is_not_asked_where_a_flag_names_the_state_directory() -> None:
    assert remote_server(target(local=True), {"TRAINYARD_SERVER": URL, "TRAINYARD_TOKEN": "t"}) is None


def test_remote_server_without_a_token_names_the_flag() -> None:
    with pytest.raises(
        InvalidArgument, match=r"run `trainyard login .*, give --token-file, or set TRAINYARD_TOKEN"
    ):
        remote_server(target(server=URL), {})


def test_remote_server_that_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="must be a URL"):
        remote_server(target(server="host:8470"), {"TRAINYARD_TOKEN": "t"})


@pytest.mark.parametrize("content", [b"", b" \n", b"two\nlines", b"\xff"])
def test_token_file_that_holds_no_token_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(InvalidArgument, match="token file"):
        remote_server(target(server=URL, token_file=tmp_path / "token"), {})


def test_server_never_shows_its_token() -> None:
    assert "secret" not in repr(Server(URL, "secret"))
