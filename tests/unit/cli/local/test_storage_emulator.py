"""The local gs://: the emulator, and the way to it for containers."""

import http.server
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from trainyard_cli.local import storage_emulator
from trainyard_cli.local.state import free_port, is_free


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Address of the storage process of this test; it stands in for the bridge with another loopback."""
    port = free_port()
    program = (
        "import sys; from trainyard_cli.local import storage_emulator;"
        "storage_emulator.bridge_address = lambda: '127.0.0.2';"
        "sys.exit(storage_emulator.main(sys.argv[1:]))"
    )
    process = psutil.Popen(
        [sys.executable, "-c", program, "--data-dir", str(tmp_path), "--port", str(port), "--for-containers"],
        stderr=subprocess.DEVNULL,
    )
    try:
        for address in ("127.0.0.1", "127.0.0.2"):
            while not answers(address, port):
                assert process.poll() is None
        yield port
    finally:
        process.terminate()
        assert process.wait(20) == 0


def answers(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def test_containers_reach_the_same_storage(port: int) -> None:
    upload = f"http://127.0.0.2:{port}/upload/storage/v1/b/models/o?uploadType=media&name=m"
    bucket = f"http://127.0.0.2:{port}/storage/v1/b"
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(bucket, b'{"name": "models"}', headers)).read()
    body = bytes(range(256)) * 4096
    urllib.request.urlopen(urllib.request.Request(upload, body, {"Content-Type": "a/b"})).read()
    for address in ("127.0.0.1", "127.0.0.2"):
        url = f"http://{address}:{port}/download/storage/v1/b/models/o/m?alt=media"
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == body


def test_port_in_use_ends_the_emulator(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert not is_free(port)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "trainyard_cli.local.storage_emulator",
                "--data-dir",
                str(tmp_path),
                "--port",
                str(port),
            ],
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1


class FakeDockerd(http.server.BaseHTTPRequestHandler):
    """Its bridge is the loopback interface."""

    def do_GET(self) -> None:
        body = b'{"Options": {"com.docker.network.bridge.name": "lo"}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return ""

    def log_message(self, *_: object) -> None:
        return


def test_bridge_address_is_that_of_the_engines_own_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/docker.sock"
        with socketserver.UnixStreamServer(path, FakeDockerd) as dockerd:
            thread = threading.Thread(target=dockerd.handle_request)
            thread.start()
            monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
            assert storage_emulator.bridge_address() == "127.0.0.1"
            thread.join()


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1"])
def test_bridge_address_without_a_local_engine_is_empty(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    assert storage_emulator.bridge_address() == ""
