"""Saved logins: the file, and which server commands use."""

from pathlib import Path
from typing import Any

import pytest

from trainyard_cli.logins import Logins, read_logins, save_logins
from trainyard_cli.settings import Server, Target, default_state_dir, remote_server
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument

URL, OTHER = "https://trains.example:8470", "http://127.0.0.1:1"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def target(tmp_path: Path, server: str = "", *, local: bool = False) -> Target:
    return Target(state_dir=tmp_path / "state", server=server, local=local)


def test_login_is_saved_for_its_owner_alone_and_read_again(environment: dict[str, str]) -> None:
    assert read_logins(environment) == Logins()
    logins = Logins().with_login(OTHER, "b").with_login(URL, "a", Path("/ca.pem"))
    path = save_logins(logins, environment)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert read_logins(environment) == logins
    assert [entry.name for entry in path.parent.iterdir()] == ["logins.json"]
    assert "secret" not in repr(Logins(URL, {URL: "secret"}))


def test_logout_leaves_the_other_logins(environment: dict[str, str]) -> None:
    logins = Logins(URL, {URL: "a", OTHER: "b"}, {URL: "/ca.pem"})
    assert logins.without(URL) == Logins("", {OTHER: "b"})
    assert logins.with_login(URL, "c") == Logins(URL, {OTHER: "b", URL: "c"}), "now without a CA file"
    assert logins.without(OTHER) == Logins(URL, {URL: "a"}, {URL: "/ca.pem"})


def test_commands_use_the_login_unless_something_else_is_named(tmp_path: Path, environment: dict[str, str]) -> None:
    save_logins(Logins(URL, {URL: "a", OTHER: "b"}, {URL: "/ca.pem"}), environment)
    ca = Path("/ca.pem")
    assert remote_server(target(tmp_path), environment) == Server(URL, "a", ca_file=ca)
    assert remote_server(target(tmp_path, OTHER), environment) == Server(OTHER, "b")
    assert remote_server(target(tmp_path), environment | {"TRAINYARD_SERVER": f"{OTHER}/"}) == Server(OTHER, "b")
    assert remote_server(target(tmp_path), environment | {"TRAINYARD_TOKEN": "c"}) == Server(URL, "c", ca_file=ca)
    named = environment | {"TRAINYARD_CA_FILE": "/other.pem"}
    assert remote_server(target(tmp_path), named) == Server(URL, "a", ca_file=Path("/other.pem"))
    assert remote_server(target(tmp_path, local=True), environment) is None
    assert remote_server(target(tmp_path), environment | {"TRAINYARD_STATE_DIR": str(tmp_path)}) is None
    with pytest.raises(InvalidArgument, match="run `trainyard login https://third`"):
        remote_server(target(tmp_path, "https://third"), environment)


def test_logins_that_others_may_read_are_refused(environment: dict[str, str]) -> None:
    path = save_logins(Logins(URL, {URL: "a"}), environment)
    path.chmod(0o644)
    with pytest.raises(FailedPrecondition, match=r"may be read by others .*chmod 600"):
        read_logins(environment)


def test_what_is_no_login_is_left_out_and_a_damaged_file_is_named(environment: dict[str, str]) -> None:
    path = save_logins(Logins(), environment)
    rows = {
        b"[]": Logins(),
        b'{"current": "u", "tokens": {"u": 1, "v": "", "w": "t"}}': Logins("", {"w": "t"}),
        b'{"current": ["u"], "tokens": {"u": "t"}}': Logins("", {"u": "t"}),
        b'{"tokens": []}': Logins(),
    }
    for content, logins in rows.items():
        path.write_bytes(content)
        assert read_logins(environment) == logins
    for content in (b"", b"\xff", b'{"tokens": {'):
        path.write_bytes(content)
        with pytest.raises(FailedPrecondition, match=r"logins.json cannot be read: it is no JSON.*login"):
            read_logins(environment)


URL = "https://trains.example:8470"


def chosen(**changes: Any) -> Target:
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
    assert chosen().flags == ""
    given = chosen(server=URL, token_file=Path("my token"), project="q", local=True)
    assert given.flags == f" --server {URL} --token-file 'my token' --project q --state-dir /s"


def test_remote_server_is_that_of_the_flags_or_else_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    given = {"TRAINYARD_SERVER": f"{URL}/", "TRAINYARD_TOKEN": " t\n"}
    assert remote_server(chosen(), {"TRAINYARD_TOKEN": "t"}) is None
    assert remote_server(chosen(), given) == Server(URL, "t")
    flags = chosen(server="http://other", token_file=tmp_path / "token")
    assert remote_server(flags, given) == Server("http://other", "from-file")
    assert remote_server(chosen(local=True), given) is None
    assert "secret" not in repr(Server(URL, "secret"))


def test_remote_server_that_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"run `trainyard login .*, give --token-file, or set TRAINYARD_TOKEN"):
        remote_server(chosen(server=URL), {})
    with pytest.raises(InvalidArgument, match="must be a URL"):
        remote_server(chosen(server="host:8470"), {"TRAINYARD_TOKEN": "t"})
    for content in (b"", b" \n", b"two\nlines", b"\xff"):
        (tmp_path / "token").write_bytes(content)
        with pytest.raises(InvalidArgument, match="token file"):
            remote_server(chosen(server=URL, token_file=tmp_path / "token"), {})
