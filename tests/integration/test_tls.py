"""A server with a certificate of its own: its clients, and what its files become while it runs."""

import json
import socket
import ssl
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from beds.certificates import Authority
from beds.token_files import long_token, write_token
from integration.api.api_support import eventually
from trainyard import Client
from trainyard_agent.server_client import ServerClient
from trainyard_cli.commands.tree import trainyard
from trainyard_cli.main import run
from trainyard_protocol.errors import Unavailable
from trainyard_protocol.wire.logs import LogChunk

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("no_login")]

QUICK = """
from trainyard_server import main, web_server
web_server.Connection.head_s = 1
raise SystemExit(main.main())
"""
NAME = "trains.example.com"


class TlsServer:
    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.issued = self.authority.issue("localhost", NAME)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"https://localhost:{self.port}"
        self.token = write_token(directory / "operator", long_token("operator"))
        self.log = directory / "log"
        tls = ["--tls-cert", self.issued.certificate, "--tls-key", self.issued.key]
        words = ["--data-dir", directory / "data", "--port", self.port, "--token-file", f"admin={self.token}"]
        with self.log.open("w") as log:
            command = [sys.executable, "-c", QUICK, *map(str, words), *map(str, tls)]
            self.process = subprocess.Popen(command, stderr=log)
        eventually(self.answers, timeout_s=60)

    def get(self, **headers: str) -> httpx.Response:
        context = ssl.create_default_context(cafile=self.authority.ca_file)
        return httpx.get(f"{self.url}/healthz", headers=headers, verify=context, trust_env=False, timeout=60)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.get().status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    server = TlsServer(tmp_path_factory.mktemp("server"))
    yield server
    server.process.kill()
    server.process.wait()


def test_command_line_and_python_trust_the_authority_that_is_named(
    served: TlsServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    login = ["login", served.url, "--token-file", str(served.token)]
    assert run(trainyard, "trainyard", login) == 1
    error = capsys.readouterr().err
    assert error == (
        f"ERROR: The certificate of the server at {served.url} is not accepted: no authority that this machine trusts "
        "has signed it. Get the CA certificate from the server's operator and give it with --ca-file FILE or "
        "TRAINYARD_CA_FILE, or add it to the operating system's.\n"
    )
    assert run(trainyard, "trainyard", [*login, "--ca-file", str(served.authority.ca_file)]) == 0
    assert run(trainyard, "trainyard", ["projects", "list"]) == 0, "the login has its CA file"
    with Client() as client:
        assert client.jobs() == []
    assert run(trainyard, "trainyard", ["logout"]) == 0
    with Client(served.url, token_file=served.token, ca_file=served.authority.ca_file) as client:
        assert client.jobs() == []
    monkeypatch.setenv("SSL_CERT_FILE", str(served.authority.ca_file))
    with Client(served.url, token_file=served.token) as client:
        assert client.jobs() == [], "the system's store"
    capsys.readouterr()
    other = Authority(tmp_path, "Other CA").ca_file
    for ca_file, says in [(other, "have not signed it"), (served.token, "holds no certificate")]:
        assert run(trainyard, "trainyard", [*login, "--ca-file", str(ca_file)]) == 1
        assert says in capsys.readouterr().err
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{served.url.replace('https', 'http')}/healthz", timeout=60)


async def test_agent_says_what_is_wrong_with_the_certificate(served: TlsServer) -> None:
    async def refusal(url: str, ca_file: Path | None) -> str:
        async with ServerClient(url, "token", "key", ca_file) as client:
            with pytest.raises(Unavailable) as caught:
                await client.send_log("run", "master-replica-0", LogChunk(start=0))
            return caught.value.message

    assert "no authority that this machine trusts" in await refusal(served.url, None)
    elsewhere = served.url.replace("localhost", "127.0.0.1")
    assert "IP address mismatch" in await refusal(elsewhere, served.authority.ca_file)


def test_server_answers_to_the_names_in_its_certificate_with_tls_alone(served: TlsServer) -> None:
    assert served.get(Host=NAME).status_code == 200
    assert served.get(Host="evil.example").status_code == 421
    context = ssl.create_default_context(cafile=served.authority.ca_file)
    with httpx.Client(verify=context, base_url=served.url, timeout=60) as browser:
        page = browser.post(
            "/sign-in", data={"token": long_token("operator")}, headers={"Accept": "text/html", "Origin": served.url}
        )
    assert "Secure" in page.headers["Set-Cookie"]
    old = ssl.create_default_context(cafile=served.authority.ca_file)
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("localhost", served.port)) as connection, pytest.raises(ssl.SSLError):
        old.wrap_socket(connection, server_hostname="localhost")


def test_handshake_that_does_not_go_on_is_ended(served: TlsServer) -> None:
    with socket.create_connection(("localhost", served.port), timeout=20) as silent:
        assert silent.recv(1) == b""


def test_renewed_certificate_is_used_without_a_restart_and_a_damaged_one_is_not(served: TlsServer) -> None:
    def expires() -> str:
        context = ssl.create_default_context(cafile=served.authority.ca_file)
        with (
            socket.create_connection(("localhost", served.port)) as connection,
            context.wrap_socket(connection, server_hostname="localhost") as secured,
        ):
            return json.dumps(secured.getpeercert(), default=str)

    first = expires()
    key = served.issued.key.read_bytes()
    served.issued.key.write_bytes(b"damaged")
    eventually(lambda: "The old certificate stays in use." in served.log.read_text())
    assert expires() == first
    served.issued.key.write_bytes(key)
    served.authority.issue("localhost", NAME, days=1)
    eventually(lambda: expires() != first)
    assert "expires soon" in served.log.read_text()
    assert "Traceback" not in served.log.read_text()
