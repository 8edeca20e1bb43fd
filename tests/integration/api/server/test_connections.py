"""Connections of the real server process, held open by clients that send, or take, next to nothing."""

import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from beds.token_files import long_token, write_token
from integration.api.api_support import eventually

pytestmark = pytest.mark.e2e

QUICK = """
from trainyard_server import main, web_server
limits = web_server.Connection
limits.head_s, limits.body_s, limits.discard_s, limits.read_s = 1, 2, 1, 2
raise SystemExit(main.main())
"""
ADMIN = f"Authorization: Bearer {long_token('admin')}"
DESCRIPTORS = 160


class Server:
    """A server process with short times and few descriptors."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        write_token(directory / "admin", long_token("admin"))
        self.log = directory / "log"
        arguments = ["--data-dir", str(directory / "data"), "--port", str(self.port)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", QUICK, *arguments, "--token-file", f"admin={directory / 'admin'}"],
                stderr=log,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)),
            )
        eventually(self.answers, timeout_s=60)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.health().status_code == 200
        except httpx.TransportError:
            return False

    def health(self) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}/healthz", timeout=30)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.process.kill()
    server.process.wait()


def head(start: str, *lines: str) -> bytes:
    return "\r\n".join([f"{start} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def drip(connection: socket.socket, data: bytes, every_s: float) -> float:
    """Send a byte at a time until the other side has closed the connection; return the seconds."""
    start = time.monotonic()

    def send() -> None:
        try:
            for byte in data:
                connection.sendall(bytes([byte]))
                time.sleep(every_s)
        except OSError:
            pass  # it is closed, which is what is waited for

    thread = threading.Thread(target=send)
    thread.start()
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    took = time.monotonic() - start
    connection.close()
    thread.join()
    return took


UPLOAD = "POST /upload/trainyard/v1/projects/p/packages/x.whl"


STALLED = {
    "nothing": (b"", b""),
    "slow head": (b"", b"x" * 400),
    "slow second head": (head("GET /healthz"), b"G" * 400),
    "half a body": (head(UPLOAD, ADMIN, "Content-Length: 1000") + b"only the beginning", b""),
    "half a chunked body": (head(UPLOAD, ADMIN, "Transfer-Encoding: chunked") + b"5\r\nabcde\r\n", b""),
    "slow body of a refused request": (head(UPLOAD, "Content-Length: 1000"), b"x" * 400),
}


def test_connection_of_a_client_that_does_not_go_on_is_closed(running: Server) -> None:
    def seconds(begin: bytes, rest: bytes) -> float:
        connection = running.connect()
        connection.sendall(begin)
        return drip(connection, rest, every_s=0.2)

    with ThreadPoolExecutor(len(STALLED)) as pool:
        took = dict(zip(STALLED, pool.map(lambda stalled: seconds(*stalled), STALLED.values()), strict=True))
    assert [name for name, s in took.items() if not 0.5 < s < 50] == [], took


def test_slow_body_and_idle_connection_go_on(running: Server) -> None:
    with running.connect() as connection:
        connection.sendall(head(UPLOAD, ADMIN, "Content-Length: 8"))
        for byte in b"packages":
            time.sleep(0.3)
            connection.sendall(bytes([byte]))
        assert received(connection).startswith(b"HTTP/1.1 200")
        time.sleep(1.2)
        connection.sendall(head("GET /healthz"))
        assert received(connection).startswith(b"HTTP/1.1 200")


def test_identity_as_a_transfer_encoding_is_left_out(running: Server) -> None:
    """TensorFlow's `gs://` sends it; other encodings than chunked are refused."""
    for name, answer in (("identity", b"HTTP/1.1 404"), ("gzip", b"HTTP/1.1 400")):
        with running.connect() as connection:
            lines = ("Content-Length: 2", f"Transfer-Encoding: {name}", ADMIN, "Connection: close")
            connection.sendall(head("POST /storage/v1/x", *lines) + b"{}")
            assert connection.recv(65536).startswith(answer)


def received(connection: socket.socket) -> bytes:
    """An answer of JSON, which may come in parts."""
    answer = b""
    while not answer.endswith(b"}"):
        part = connection.recv(65536)
        assert part, "the connection was closed"
        answer += part
    return answer


def test_answer_that_nobody_takes_is_given_up(running: Server) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", running.port))
        page = httpx.get(f"http://127.0.0.1:{running.port}/sign-in", timeout=60).text
        script = re.search(r"/static/[^\"/]+/", page)
        assert script is not None
        connection.sendall(head(f"GET {script[0]}vendor/uPlot.js") * 200)
        peer = connection.getsockname()[1]
        eventually(lambda: peer not in peers(running))


def peers(running: Server) -> set[int]:
    """The ports of the clients whose connections the server has."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        int(row[2].split(":")[1], 16)
        for row in rows
        if int(row[1].split(":")[1], 16) == running.port and row[3] == "01"
    }


def test_server_that_has_no_room_for_connections_says_so_once_and_recovers(running: Server) -> None:
    """First more connections than it accepts, then, faster than it can close them, more than it has descriptors."""
    with ExitStack() as stack:
        for _ in range(DESCRIPTORS // 2 + 10):
            stack.enter_context(running.connect())
            time.sleep(0.002)
        with pytest.raises(httpx.TransportError):
            running.health()
    eventually(running.answers)
    with ExitStack() as stack:
        for _ in range(3 * DESCRIPTORS):
            stack.enter_context(running.connect())
    eventually(running.answers)
    lines = running.log.read_text().splitlines()
    (line,) = (line for line in lines if "descriptor" in line)
    assert "All 80 connections are in use, of 160 file descriptors" in line
    assert not [line for line in lines if "Traceback" in line]
