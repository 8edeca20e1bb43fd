"""Access of others on the machine to tokens and directories."""

import os
from pathlib import Path

import pytest

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument
from trainyard_protocol.net.private_files import exposure_of, make_private, read_token_file

FILE = Path("/tokens/admin")


def test_secret_is_exposed_by_its_mode_and_owner() -> None:
    table: dict[tuple[int, bool], bool | None] = {  # mode and whether it is ours: whether its exposure is grave
        (0o600, True): None,
        (0o400, True): None,
        (0o640, True): True,
        (0o604, True): True,
        (0o610, True): True,
        (0o666, True): True,
        (0o600, False): None,  # of an administrator who reads it as root
        (0o440, False): None,  # of root, for the group of the server
        (0o444, False): False,  # a secret that root mounts into a container
        (0o644, False): False,
        (0o620, False): True,
        (0o602, False): True,
    }
    exposures = {(mode, is_ours): exposure_of(FILE, mode, is_ours) for mode, is_ours in table}
    assert {one: exposure and exposure.is_grave for one, exposure in exposures.items()} == table


def test_token_behind_a_link_has_the_mode_of_its_file(tmp_path: Path) -> None:
    """The modes with which Kubernetes mounts secrets."""
    (tmp_path / "data").write_text(" token\n")
    (tmp_path / "data").chmod(0o600)
    (tmp_path / "token").symlink_to("data")
    assert read_token_file(tmp_path / "token").exposure is None
    (tmp_path / "data").chmod(0o644)
    exposed = read_token_file(tmp_path / "token")
    assert exposed.token == "token"
    assert exposed.exposure is not None
    assert f"chmod 600 {tmp_path / 'token'}" in exposed.exposure.message


@pytest.mark.parametrize("content", [b" \n", b"\xff"])
def test_file_without_a_token_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(InvalidArgument, match="token file"):
        read_token_file(tmp_path / "token")


@pytest.mark.parametrize(
    ("mode", "may_pass", "after"),
    [(0o755, False, 0o700), (0o755, True, 0o700), (0o711, False, 0o700), (0o711, True, 0o711), (0o1700, False, 0o1700)],
)
def test_directory_that_is_open_to_others_is_closed(tmp_path: Path, mode: int, may_pass: bool, after: int) -> None:
    directory = tmp_path / "new" / "data"
    assert make_private(directory, may_pass) == ""
    assert directory.stat().st_mode & 0o7777 == 0o700
    directory.chmod(mode)
    line = make_private(directory, may_pass)
    assert directory.stat().st_mode & 0o7777 == after
    assert bool(line) == (mode != after)


def test_open_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert make_private(tmp_path) == ""
    tmp_path.chmod(0o750)
    with pytest.raises(FailedPrecondition, match="belongs to another user and is open to others"):
        make_private(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o750
