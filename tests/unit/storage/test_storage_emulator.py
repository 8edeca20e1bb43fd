"""The local gs://: the emulator, and the way to it for containers."""

import base64
import contextlib
import gzip
import http.client
import http.server
import json
import os
import socket
import socketserver
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from beds.waiting import until
from support.addresses import free_ports
from trainyard_protocol.net.loopback import is_free
from trainyard_storage import server

SECRET = "s3cret_-" * 5
PROGRAM = """
import functools, sys
from trainyard_storage import app, emulator, server
server.bridge_address = lambda: "127.0.0.2"
server.Connection.head_s = server.Connection.body_s = 3
emulator.StorageApp = functools.partial(app.StorageApp, limits=app.Limits(strangers=16, callers=200))
sys.exit(emulator.main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Storage:
    """The storage process; another loopback address stands in for the bridge."""

    port: int
    process: psutil.Process
    directory: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{SECRET}"

    def ask(
        self, method: str, target: str, body: bytes = b"", address: str = "127.0.0.1", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """One request; `_` in the names of headers is `-`."""
        with contextlib.closing(http.client.HTTPConnection(address, self.port, timeout=20)) as connection:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.putrequest(method, target, skip_host="Host" in sent)
            for name, value in sent.items():
                connection.putheader(name, value)
            if body and "Content-Length" not in sent:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()

    def put(self, name: str, body: bytes, kind: str = "a/b") -> None:
        target = f"/{SECRET}/upload/storage/v1/b/models/o?uploadType=media&name={name}"
        assert self.ask("POST", target, body, Content_Type=kind)[0] == 200

    def get(self, name: str) -> bytes:
        target = f"/{SECRET}/download/storage/v1/b/models/o/{name}?alt=media"
        return self.ask("GET", target)[2]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    root, (port,) = tmp_path_factory.mktemp("storage"), free_ports(1)
    (root / "secret").write_text(SECRET)
    options = ["--data-dir", str(root / "gcs"), "--port", str(port), "--secret-file", str(root / "secret")]
    options += ["--names-dir", str(root / "names"), "--for-containers"]
    process = psutil.Popen([sys.executable, "-c", PROGRAM, *options])
    try:
        for address in ("127.0.0.1", "127.0.0.2"):
            while not answers(address, port):
                assert process.poll() is None
        started = Storage(port, process, root / "gcs")
        body = b'{"name": "models"}'
        assert started.ask("POST", f"/{SECRET}/storage/v1/b", body, Content_Type="application/json")[0] == 200
        yield started
    finally:
        process.terminate()
        assert process.wait(20) == 0


def answers(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def test_nobody_without_the_secret_and_no_web_page_is_served_and_nothing_deletes_all(storage: Storage) -> None:
    storage.put("kept", b"content")
    inside, outside = f"/{SECRET}/storage/v1/b", "/storage/v1/b"
    table: list[tuple[str, str, dict[str, str], int, bytes]] = [
        ("GET", "/wipe", {}, 403, b"storage-token"),
        ("GET", f"/{SECRET}/wipe", {}, 404, b"no GET for this path"),
        ("GET", f"/{SECRET}/wipe?keep-buckets=1", {}, 404, b"no GET"),
        ("GET", f"/{SECRET}/wipe;x", {}, 404, b"no GET"),
        ("GET", f"/{SECRET}//wipe", {}, 404, b"no GET"),
        ("GET", f"/{SECRET}/%77ipe", {}, 404, b"no GET"),
        ("GET", f"/{SECRET}/", {}, 404, b"no GET"),
        ("POST", inside, {"X_Http_Method_Override": "WIPE"}, 404, b"no WIPE"),
        ("GET", outside, {}, 403, b"STORAGE_EMULATOR_HOST=http://127.0.0.1"),
        ("GET", f"/{SECRET[:-1]}/storage/v1/b", {}, 403, b"storage-token"),
        ("GET", f"/{SECRET}x/storage/v1/b", {}, 403, b"storage-token"),
        ("GET", f"http://127.0.0.1:{storage.port}{inside}", {}, 403, b"storage-token"),
        ("GET", inside, {"Host": f"evil.example:{storage.port}"}, 421, b"not to 'evil.example"),
        ("GET", inside, {"Host": "127.0.0.1.evil.example"}, 421, b"127.0.0.1, "),
        ("GET", inside, {"Host": "localhost@evil.example"}, 421, b"localhost"),
        ("GET", inside, {"Origin": "http://evil.example"}, 403, b"not web pages"),
        ("GET", inside, {"Origin": "null"}, 403, b"not web pages"),
        ("OPTIONS", inside, {"Origin": f"http://127.0.0.1:{storage.port}"}, 403, b"not web pages"),
        ("GET", inside, {"Sec_Fetch_Site": "cross-site"}, 403, b"not web pages"),
        ("GET", inside, {"Host": "host.docker.internal:1"}, 200, b"models"),
        ("GET", inside, {"Host": "LOCALHOST"}, 200, b"models"),
    ]
    wrong = []
    for method, target, headers, status, part in table:
        answered, sent, body = storage.ask(method, target, b"", **headers)
        if (answered, part in body) != (status, True) or any("access-control" in name for name in sent):
            wrong.append((method, target, headers, answered, body))
    assert wrong == []
    assert storage.get("kept") == b"content"


def test_what_jobs_stored_runs_in_no_browser(storage: Storage) -> None:
    kinds = {"text/html", "TEXT/HTML", "text/html; charset=utf-8", "image/svg+xml", "application/xhtml+xml"}
    kinds |= {"text/xml", "text/javascript", "application/pdf", "x", "text/plain, text/html", "text/plain\x80"}
    for kind in kinds:
        storage.put("page.html", b"<script>", kind)
        for path in ("download/storage/v1/b/models/o/page.html?alt=media", "models/page.html"):
            wish = "&response-content-disposition=inline" if "?" in path else "?response-content-disposition=inline"
            status, headers, _ = storage.ask("GET", f"/{SECRET}/{path}{wish}")
            assert (status, headers["content-type"]) == (200, "application/octet-stream"), kind
            assert headers["content-disposition"] == "attachment"
            assert headers["x-content-type-options"] == "nosniff"
    storage.put("page.html", b"<script>", "text/html")
    described = json.loads(storage.ask("GET", f"/{SECRET}/storage/v1/b/models/o/page.html")[2])
    assert described["contentType"] == "text/html"  # for the clients of Google Cloud Storage


def test_half_requests_block_nobody_and_are_closed(storage: Storage) -> None:
    storage.put("large", bytes(1 << 24))
    host = f"HTTP/1.1\r\nHost: localhost:{storage.port}\r\n"
    upload = f"POST /{SECRET}/upload/storage/v1/b/models/o?uploadType=media&name=half {host}Content-Type: a/b\r\n"
    halves = [
        *[""] * 20,
        *["GET /"] * 20,
        *[f"GET /{SECRET}/storage/v1/b {host}X-Slow: "] * 20,
        *[f"GET /guess {host}\r\n"] * 5,
        *[f"{upload}Content-Length: 1000000000\r\n\r\nhalf"] * 40,
        *[f"{upload}Transfer-Encoding: chunked\r\n\r\n5\r\nha"] * 20,
        *[f"GET /{SECRET}/models/large {host}\r\n"] * 80,  # and never reads the answer
    ]
    with contextlib.ExitStack() as stack:
        connections = []
        for half in halves:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", storage.port), 20))
            with contextlib.suppress(ConnectionError):  # the oldest are closed as others come
                connection.sendall(half.encode())
            connections.append(connection)
        storage.put("meanwhile", b"content")
        assert storage.get("meanwhile") == b"content"
        for connection in connections[:-80]:  # within their limits: a timeout here fails the test
            with contextlib.suppress(ConnectionError):
                while connection.recv(1 << 16):
                    pass
    assert storage.get("meanwhile") == b"content"


def test_hostile_requests_are_refused_at_little_cost(storage: Storage) -> None:
    bucket, upload = f"/{SECRET}/storage/v1/b", f"/{SECRET}/upload/storage/v1/b/models/o?uploadType="
    json_type, none = {"Content_Type": "application/json"}, dict[str, str]()
    multipart = {"Content_Type": "multipart/related; boundary=b"}
    bomb = gzip.compress(bytes(1 << 28))
    objects = f"{bucket}/models/o/"
    table: list[tuple[str, str, bytes, dict[str, str], int]] = [
        *[("POST", bucket, json.dumps({"name": name}).encode(), json_type, 400) for name in
          ("..", ".", ".meta", "_resumable", "", "a/../..", "/etc", "\0", 3, None)],
        ("POST", bucket, b"[" * 100_000, json_type, 400),
        ("POST", bucket, b"[]", json_type, 400),
        ("POST", bucket, b"\xff{", json_type, 400),
        ("POST", bucket, b" " * (1 << 20) + b"{}", json_type, 413),
        ("POST", bucket, b"x", {**json_type, "Content_Length": "10000000000000"}, 413),
        ("POST", bucket, b"x", {**json_type, "Content_Length": "-1"}, 400),
        ("POST", f"{upload}media&name=..", b"x", none, 400),
        ("POST", f"{upload}media&name=a%00b", b"x", none, 400),
        ("POST", f"{upload}media&name={'n' * 3000}", b"x", none, 400),
        ("POST", f"{upload}media", b"x", none, 400),
        ("POST", f"{upload}media&name=x", b"not gzip", {"Content_Encoding": "gzip"}, 400),
        ("POST", f"{upload}media&name=x", bomb, {"Content_Encoding": "gzip"}, 413),
        ("POST", f"{upload}multipart", b"--b\r\n\r\n{}", multipart, 400),
        ("POST", f"{upload}multipart", b"", multipart, 400),
        ("PUT", f"{upload}resumable&upload_id=unknown", b"x", none, 404),
        ("PUT", f"{upload}resumable", b"x", none, 400),
        ("GET", f"{objects}{'a' * 3000}/", b"", none, 404),
        ("GET", f"{objects}{'a/copyTo/b/b/o/' * 260}{'a' * 10}/", b"", none, 404),
        ("GET", f"{objects}{'a' * 9000}", b"", none, 414),
        ("GET", f"{objects}{'a' * 20_000}", b"", none, 414),
        ("GET", f"{objects}x?alt=media", b"", {"Range": "bytes=9999999999999999999-1"}, 404),
        ("BREW", objects + "x", b"", none, 404),
    ]  # fmt: skip
    before = storage.process.memory_info().rss
    wrong = []
    for method, target, body, headers, status in table:
        answered, _, text = storage.ask(method, target, body, **headers)
        if answered != status:
            wrong.append((method, target[:200], body[:50], answered, text[:200]))
    assert wrong == []
    assert storage.process.memory_info().rss - before < 200 * 2**20
    storage.put("after", b"content")
    assert storage.get("after") == b"content"


def test_googles_client_works_below_the_secret_from_every_address(storage: Storage) -> None:
    from trainyard_protocol.net.gcs import CloudStorage

    content = bytes(range(256)) * 4096
    addresses = [f"http://{host}:{storage.port}/{SECRET}" for host in ("127.0.0.2", "localhost")]
    with contextlib.ExitStack() as stack:
        of_container, here = (
            stack.enter_context(contextlib.closing(CloudStorage("The test", address).client())).bucket("models")
            for address in addresses
        )
        blob: Any = of_container.blob("a/x y?#ü", chunk_size=1 << 18)
        blob.upload_from_string(content)  # resumable
        listed = next(iter(here.list_blobs(prefix="a/")))
        assert urllib.parse.urlsplit(listed.media_link).netloc == f"localhost:{storage.port}"
        assert listed.download_as_bytes() == content
        here.copy_blob(listed, here, "copy")
        here.blob("both").compose([listed, here.blob("copy")])
        assert here.blob("both").download_as_bytes(start=len(content) - 1, end=len(content)) == b"\xff\0"
        with here.client.batch():
            here.delete_blobs(["copy", "both"])
        assert here.get_blob("copy") is None
    stored = [path.read_bytes() for path in storage.directory.rglob("objects.db*")]
    assert stored
    assert not any(SECRET.encode() in text for text in stored)


def test_address_that_is_given_for_containers_is_served_without_an_engine(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    (tmp_path / "secret").write_text(SECRET)
    command = [sys.executable, "-m", "trainyard_storage.emulator", "--port", str(port), "--for-containers", "127.0.0.3"]
    command += ["--data-dir", str(tmp_path / "buckets"), "--secret-file", str(tmp_path / "secret")]
    process = psutil.Popen(command, env={**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"})
    try:
        until(lambda: answers("127.0.0.3", port))
        started = Storage(port, process, tmp_path)
        assert started.ask("GET", f"/{SECRET}/storage/v1/b?project=p", address="127.0.0.3")[0] == 200
        assert started.ask("GET", "/storage/v1/b?project=p", address="127.0.0.3")[0] == 403
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_port_in_use_ends_the_emulator(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert not is_free(port)
        command = [sys.executable, "-m", "trainyard_storage.emulator", "--port", str(port)]
        command += ["--data-dir", str(tmp_path), "--secret-file", str(tmp_path / "secret")]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
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
            assert server.bridge_address() == "127.0.0.1"
            thread.join()


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1"])
def test_bridge_address_without_a_local_engine_is_empty(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    assert server.bridge_address() == ""


@contextlib.contextmanager
def connected(
    storage: Storage, target: str, secret: str = SECRET, agent: str = "TSL"
) -> Iterator[tuple[bytes, socket.socket]]:
    """The proxy's answer and the connection."""
    login = base64.b64encode(f"trainyard:{secret}".encode()).decode()
    head = f"Host: {target}\r\nProxy-Authorization: Basic {login}\r\nUser-Agent: {agent}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", storage.port), timeout=20) as connection:
        connection.sendall(f"CONNECT {target} HTTP/1.1\r\n{head}".encode())
        yield connection.recv(1 << 16).partition(b"\r\n")[0], connection


def asked_at_once(context: ssl.SSLContext, connection: socket.socket, name: str, request: bytes) -> bytes:
    """The answer to a request inside of TLS that comes with the last bytes of the handshake, as TensorFlow's do."""
    came, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    inside, answer = context.wrap_bio(came, to_send, server_hostname=name), b""
    while True:
        try:
            inside.do_handshake()
            break
        except ssl.SSLWantReadError:
            connection.sendall(to_send.read())
            came.write(connection.recv(1 << 16))
    inside.write(request)
    connection.sendall(to_send.read())
    while received := connection.recv(1 << 16):
        came.write(received)
        with contextlib.suppress(ssl.SSLWantReadError):
            while part := inside.read(1 << 16):
                answer += part
            break  # the server has ended it
    return answer


def test_tensorflow_finds_googles_names_by_the_proxy_with_a_certificate(storage: Storage) -> None:
    context = ssl.create_default_context(cafile=storage.directory.parent / "names" / "roots.pem")
    for name, request, expected in (
        ("www.googleapis.com", "POST /upload/storage/v1/b/models/o?uploadType=resumable&name=t", b"https://www."),
        ("storage.googleapis.com", "GET /models/nothing", b"404"),
    ):
        with connected(storage, f"{name}:443") as (status, connection):
            assert b" 200 " in status
            head = f"{request} HTTP/1.1\r\nHost: {name}\r\nContent-Length: 0\r\n"
            answer = asked_at_once(context, connection, name, f"{head}Transfer-Encoding: identity\r\n\r\n".encode())
        assert expected in answer


def test_proxy_passes_on_what_others_call_and_knows_the_secret(storage: Storage) -> None:
    with connected(storage, "www.googleapis.com:443", secret="wrong") as (status, _):
        assert b" 403 " in status
    with socket.create_server(("127.0.0.1", 0)) as there:
        with connected(storage, f"127.0.0.1:{there.getsockname()[1]}", agent="curl") as (status, connection):
            assert b" 200 " in status
            accepted, _ = there.accept()
            with accepted:
                connection.sendall(b"hello")
                assert accepted.recv(5) == b"hello"
                accepted.sendall(b"you")
            assert connection.recv(3) == b"you"
        gone = there.getsockname()[1]
    with connected(storage, f"127.0.0.1:{gone}", agent="curl") as (status, _):
        assert b" 502 " in status


def test_start_loads_neither_clients_nor_models() -> None:
    heavy = ("httpx", "rich", "pydantic", "psutil", "yaml", "cryptography")
    program = f"import sys, trainyard_storage.emulator;print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
