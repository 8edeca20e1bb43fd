"""Command lines that the server refuses, with one line each, before it serves."""

import socket
from pathlib import Path

import pytest

from trainyard_server.domain.permissions import Role, Token
from trainyard_server.main import _parser, _settings, main


@pytest.fixture
def tokens(tmp_path: Path) -> list[str]:
    (tmp_path / "token").write_text("secret\n")
    return ["--token-file", f"admin={tmp_path / 'token'}"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.com", "::"])
def test_host_that_is_not_loopback_is_refused(
    tmp_path: Path, tokens: list[str], capsys: pytest.CaptureFixture[str], host: str
) -> None:
    error = refused(capsys, "--data-dir", tmp_path / "data", "--host", host, "--port", 0, *tokens)
    assert f"--host {host} is not a loopback address" in error
    assert not (tmp_path / "data").exists()


def test_port_that_is_busy_is_said(
    tmp_path: Path, tokens: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        error = refused(capsys, "--data-dir", tmp_path / "data", "--port", port, *tokens)
    assert error == f"trainyard_server: cannot listen on 127.0.0.1:{port}: Address already in use.\n"


def test_data_directory_that_is_a_file_is_said(
    tmp_path: Path, tokens: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").write_text("")
    error = refused(capsys, "--data-dir", tmp_path / "data", "--port", 0, *tokens)
    assert f"cannot use the data directory {tmp_path / 'data'}: File exists." in error


def test_database_that_is_none_is_said(
    tmp_path: Path, tokens: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trainyard.db").write_text("no database, but long enough to be read as the header of one" * 9)
    error = refused(capsys, "--data-dir", tmp_path, "--port", 0, *tokens)
    assert f"cannot use the data directory {tmp_path}: file is not a database." in error


def test_machine_types_that_are_wrong_are_said(
    tmp_path: Path, tokens: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "types.yaml").write_text("machineTypes: {box: {family: site, vcpus: lots, memoryGb: 1}}")
    arguments = ["--data-dir", tmp_path / "data", "--port", 0, "--machine-types", tmp_path / "types.yaml"]
    error = refused(capsys, *arguments, *tokens)
    assert "types.yaml: machineTypes.box.vcpus: " in error


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("admin", "--token-file takes ROLE=FILE"),
        ("root=x", "the role being viewer, submitter, admin or agent"),
        ("admin=/nonexistent/token", "cannot read the admin token"),
        ("admin=/dev/null", "the admin token in /dev/null is empty"),
        ("submitter:alice=/dev/null", "the submitter:alice token in /dev/null is empty"),
        ("submitter:=/dev/null", "'' is not a valid name: letters"),
        ("submitter:al ice=/dev/null", "'al ice' is not a valid name: letters"),
    ],
)
def test_token_file_that_cannot_be_used_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, says: str
) -> None:
    assert says in refused(capsys, "--data-dir", tmp_path, "--port", 0, "--token-file", option)


def test_two_tokens_with_one_text_are_refused(
    tmp_path: Path, tokens: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").write_text("secret")
    more = ["--token-file", f"submitter:alice={tmp_path / 'other'}"]
    error = refused(capsys, "--data-dir", tmp_path / "data", "--port", 0, *tokens, *more)
    assert error == (
        "trainyard_server: the admin and alice (submitter) have the same token: each needs one of its own.\n"
    )


def test_token_files_name_who_has_them(tmp_path: Path) -> None:
    for name in ("admin", "alice", "old", "new"):
        (tmp_path / name).write_text(f"{name}'s secret\n")
    words = ["--data-dir", str(tmp_path)]
    for option in ("admin=admin", "submitter:alice@example.com=alice", "viewer:v=old", "viewer:v=new"):
        who, _, file = option.partition("=")
        words += ["--token-file", f"{who}={tmp_path / file}"]
    settings = _settings(_parser().parse_args(words))
    assert settings.tokens == (
        Token(Role.ADMIN, "admin", "admin's secret"),
        Token(Role.SUBMITTER, "alice@example.com", "alice's secret"),
        Token(Role.VIEWER, "v", "old's secret"),
        Token(Role.VIEWER, "v", "new's secret"),
    )
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--lease-seconds", 0),
        ("--retries", -1),
        ("--keep-logs-gb", -1),
        ("--keep-logs-gb", "nan"),
        ("--keep-jobs", "soon"),
        ("--keep-jobs", "0d"),
    ],
)
def test_value_out_of_its_range_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: object
) -> None:
    assert option in refused(capsys, "--data-dir", tmp_path, "--port", 0, option, value)


def test_retention_keeps_everything_unless_it_is_limited(tmp_path: Path) -> None:
    def limits(*options: str) -> tuple[float | None, int | None]:
        settings = _settings(_parser().parse_args(["--data-dir", str(tmp_path), *options]))
        return settings.keep_jobs_s, settings.keep_log_bytes

    assert limits() == limits("--keep-jobs", "all", "--keep-logs-gb", "0") == (None, None)
    assert limits("--keep-jobs", "90d", "--keep-logs-gb", "0.5") == (90 * 86400.0, 500_000_000)


def test_command_line_that_is_wrong_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--port", "x"])
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err
