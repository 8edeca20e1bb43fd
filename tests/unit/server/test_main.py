"""Command lines that the server refuses, with one line each, before it serves."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from beds.certificates import Authority
from beds.token_files import long_token, write_token
from trainyard_server.config.network import NetworkSettings
from trainyard_server.domain.access.permissions import Role, Token
from trainyard_server.main import main, read_settings


@pytest.fixture
def tokens(tmp_path: Path) -> list[str]:
    write_token(tmp_path / "token", long_token("secret"))
    return ["--token-file", f"admin={tmp_path / 'token'}"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


UNSAFE = {
    "--host 0.0.0.0": "--host 0.0.0.0 is not a loopback address, and tokens must not cross a network",
    "--host ::": "Give --tls-cert and --tls-key for HTTPS, or --behind-proxy ADDRESS",
    "--host example.com": "--host takes an address of this machine",
    "--host 0.0.0.0 --behind-proxy 0.0.0.0/0": "--behind-proxy 0.0.0.0/0 is every address",
    "--behind-proxy proxy.example.com": "--behind-proxy takes an address, or a network",
    "--https-address 127.0.0.1": "--https-address 127.0.0.1: other machines do not reach 127.0.0.1",
    "--https-address 0.0.0.0": "other machines do not reach 0.0.0.0",
    "--https-address 10.0.0.7 --behind-proxy 10.0.0.5": "--https-address needs a loopback --host and cannot",
    "--https-address https://a": "takes a name without scheme and port",
    "--https-address nowhere.invalid": "--https-address nowhere.invalid cannot be resolved",
    "--tls-cert server.pem": "--tls-cert and --tls-key are needed together",
    "--tls-cert server.pem --tls-key none.key": "--tls-key: none.key cannot be read: No such file",
    "--tls-cert none.pem --tls-key server.key": "--tls-cert: none.pem cannot be read: No such file",
    "--tls-cert server.pem --tls-key other.key": "other.key (--tls-key) is not that of",
    "--tls-cert server.key --tls-key server.key": "must be PEM files",
    "--tls-cert server.pem --tls-key open.key": "--tls-key: Others may read the file open.key",
    "--tls-cert server.pem --tls-key locked.key": "the key is encrypted",
}


def test_network_that_is_not_safe_is_refused_before_anything_is_opened(
    tmp_path: Path, tokens: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    authority = Authority(tmp_path)
    authority.issue("localhost", file="other")
    issued = authority.issue("localhost")
    key = write_token(tmp_path / "open.key", issued.key.read_text())
    key.chmod(0o644)
    locked = load_pem_private_key(issued.key.read_bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")
    )
    write_token(tmp_path / "locked.key", locked.decode())
    common = ("--data-dir", tmp_path / "data", "--port", 0)
    errors = {words: refused(capsys, *common, *words.split(), *tokens) for words in UNSAFE}
    assert {words: error for words, error in errors.items() if UNSAFE[words] not in error} == {}
    assert not (tmp_path / "data").exists()


def test_proxy_elsewhere_is_the_only_one_that_connects_and_is_believed() -> None:
    proxies = ["--behind-proxy", "172.18.0.0/16", "--behind-proxy", "10.0.0.5"]
    words = ["--data-dir", "d", "--host", "0.0.0.0", *proxies]
    _, network = read_settings(words)
    assert network.believed == ("127.0.0.0/8", "::1/128", "172.18.0.0/16", "10.0.0.5/32")
    admitted = {"172.18.3.4": True, "10.0.0.5": True, "127.0.0.1": True, "10.0.0.6": False, "fe80::1%eth0": False}
    assert {address: network.admits(address) for address in admitted} == admitted
    assert NetworkSettings().admits("192.0.2.1"), "it listens on loopback, or has TLS"


@pytest.mark.parametrize(("address", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
@pytest.mark.parametrize("option", ["--port", "--google-port"])
def test_port_that_is_busy_is_said(
    option: str, address: str, shown: str, tmp_path: Path, tokens: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as busy:
        port = busy.getsockname()[1]
        error = refused(capsys, "--data-dir", tmp_path / "data", "--port", "0", option, port, *tokens)
    assert error == (
        f"trainyard_server: cannot listen on {shown}:{port}: Address already in use. End the program that does, or "
        "choose another port.\n"
    )


def test_files_that_cannot_be_used_are_said(
    tmp_path: Path, tokens: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = "no database, but long enough to be read as the header of one" * 9
    (tmp_path / "trainyard.db").write_text(text)
    (tmp_path / "types.yaml").write_text("machineTypes: {box: {family: site, vcpus: lots, memoryGb: 1}}")
    file = tmp_path / "types.yaml"
    rows: list[tuple[tuple[object, ...], str]] = [
        (("--data-dir", file), f"cannot use the data directory {file}: File exists."),
        (("--data-dir", tmp_path), f"cannot use the data directory {tmp_path}: file is not a database."),
        (("--data-dir", tmp_path / "data", "--machine-types", file), "types.yaml:1: machineTypes.box.vcpus: "),
    ]
    for words, says in rows:
        assert says in refused(capsys, "--port", 0, *words, *tokens)


def test_token_file_that_cannot_be_used_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {
        "admin": "--token-file takes ROLE=FILE",
        "root=x": "the role being viewer, submitter, admin, agent or metrics",
        "admin=/nonexistent/token": "The token file /nonexistent/token cannot be read: No such file",
        "submitter:alice=/dev/null": ("--token-file submitter:alice=/dev/null: The token file /dev/null is empty"),
        "submitter:=/dev/null": "'' is not a valid name: letters",
        "submitter:al ice=/dev/null": "'al ice' is not a valid name: letters",
    }
    for option, says in rows.items():
        assert says in refused(capsys, "--data-dir", tmp_path, "--port", 0, "--token-file", option)


@pytest.mark.parametrize(
    ("token", "mode", "says"),
    [
        (long_token("x"), 0o640, "Others may read the file"),
        (long_token("x"), 0o666, "Others may change the file"),
        ("nineteen-characters", 0o600, "it needs 20. Make one with (umask 077; python3"),
    ],
)
def test_token_that_others_may_have_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], token: str, mode: int, says: str
) -> None:
    path = write_token(tmp_path / "token", token)
    path.chmod(mode)
    error = refused(capsys, "--data-dir", tmp_path, "--port", 0, "--token-file", f"admin={path}")
    assert says in error
    assert token not in error


def test_data_directory_that_was_open_to_others_is_closed(
    tmp_path: Path, tokens: list[str], caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o755)
    (tmp_path / "data" / "trainyard.db").write_text("no database " * 99)  # it ends before it serves
    refused(capsys, "--data-dir", tmp_path / "data", "--port", 0, *tokens)
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert "was open to others (mode 0755)" in caplog.text


def test_token_files_name_who_has_them(tmp_path: Path) -> None:
    for name in ("admin", "alice", "old", "new"):
        write_token(tmp_path / name, long_token(name))
    words = ["--data-dir", str(tmp_path)]
    for option in ("admin=admin", "submitter:alice@example.com=alice", "viewer:v=old", "viewer:v=new"):
        who, _, file = option.partition("=")
        words += ["--token-file", f"{who}={tmp_path / file}"]
    settings, _ = read_settings(words)
    assert settings.tokens == (
        Token(Role.ADMIN, "admin", long_token("admin")),
        Token(Role.SUBMITTER, "alice@example.com", long_token("alice")),
        Token(Role.VIEWER, "v", long_token("old")),
        Token(Role.VIEWER, "v", long_token("new")),
    )
    assert "token-of" not in repr(settings)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--lease-seconds", 0),
        ("--lease-seconds", 119),
        ("--lease-seconds", "nan"),
        ("--lease-seconds", "inf"),
        ("--retries", -1),
        ("--keep-jobs", "soon"),
        ("--keep-jobs", "0d"),
        ("--keep-audit", -1),
        ("--audit-file", "/"),
        ("--allowed-host", "https://trainyard.example.com"),
        *(("--allowed-host", name) for name in ("", "*.example.com", "a:80", "a..b", "a" * 254)),
        ("--google-domain", "*"),
        ("--storage", "gs://bucket"),
    ],
)
def test_value_out_of_its_range_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: object
) -> None:
    assert option in refused(capsys, "--data-dir", tmp_path, "--port", 0, option, value)


def test_retention_keeps_everything_unless_it_is_limited(tmp_path: Path) -> None:
    def limits(*options: str) -> tuple[float | None, float | None]:
        settings, _ = read_settings(["--data-dir", str(tmp_path), *options])
        return settings.keep_jobs_s, settings.keep_audit_s

    assert limits() == limits("--keep-jobs", "all") == (None, 365 * 86400.0)
    assert limits("--keep-jobs", "90d", "--keep-audit", "0") == (90 * 86400.0, None)


def test_server_starts_without_what_it_may_never_need() -> None:
    heavy = ("httpx", "cryptography", "joserfc", "alembic", "google.cloud", "optuna", "sqlalchemy.dialects.postgresql")
    program = (
        "import sys, trainyard_server.main as main; from trainyard_server.routes import routers_of;"
        "routes = [vars(route) for router in routers_of(main.CAPABILITIES) for route in router.routes];"
        f"print([name for name in {heavy!r} if name in sys.modules],"
        " [route['path'] for route in routes if 'dependant' in route and '_is_large' in route], bool(routes))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[] [] True\n"
