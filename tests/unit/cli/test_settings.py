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


def test_remote_server_is_that_of_the_flags_or_else_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    given = {"TRAINYARD_SERVER": f"{URL}/", "TRAINYARD_TOKEN": " t\n"}
    assert remote_server(target(), {"TRAINYARD_TOKEN": "t"}) is None
    assert remote_server(target(), given) == Server(URL, "t")
    flags = target(server="http://other", token_file=tmp_path / "token")
    assert remote_server(flags, given) == Server("http://other", "from-file")
    assert remote_server(target(local=True), given) is None
    assert "secret" not in repr(Server(URL, "secret"))


def test_remote_server_that_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"run `trainyard login .*, give --token-file, or set TRAINYARD_TOKEN"):
        remote_server(target(server=URL), {})
    with pytest.raises(InvalidArgument, match="must be a URL"):
        remote_server(target(server="host:8470"), {"TRAINYARD_TOKEN": "t"})
    for content in (b"", b" \n", b"two\nlines", b"\xff"):
        (tmp_path / "token").write_bytes(content)
        with pytest.raises(InvalidArgument, match="token file"):
            remote_server(target(server=URL, token_file=tmp_path / "token"), {})
