"""A registry of images on this machine, as engines see one (distribution API v2), and some that misbehave.

Engines of this machine take 127.0.0.1 without TLS. An isolated engine (`own_engine`) does not reach it.
"""

import base64
import contextlib
import gzip
import hashlib
import json
import re
import socket
import ssl
import struct
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from beds.certificates import Issued
from beds.engines import Engine

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"

_PATH = re.compile(r"/v2/(?P<repository>.+)/(?P<kind>manifests|blobs)/(?P<reference>[^/]+)")


@dataclass(frozen=True)
class Fault:
    """A fault of a registry that passes. `status`: of its answers, with `body`; 0: it resets connections. `layers`: of
    layers alone, of which half is sent."""

    status: int = 0
    body: str = ""
    layers: bool = False


class Registry:
    """Shows everybody what it has. `fault`: what is wrong with it now; None: nothing."""

    def __init__(self, host: str = "127.0.0.1", certificate: Issued | None = None) -> None:
        """`certificate`: with TLS, by this one."""
        self.fault: Fault | None = None
        self.held, self.released = threading.Event(), threading.Event()
        """Whether those that hang or pause do; set by the test, so that they go on."""
        self._manifests: dict[tuple[str, str], _Content] = {}
        self._blobs: dict[str, _Content] = {}
        self._server = _Server((host, 0), partial(_Answer, self))
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate.certificate, certificate.key)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )

    @classmethod
    @contextmanager
    def start(cls, host: str = "127.0.0.1", certificate: Issued | None = None) -> Iterator[Self]:
        registry = cls(host, certificate)
        thread = threading.Thread(target=registry._server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield registry
        finally:
            registry.released.set()
            registry._server.shutdown()
            registry._server.hang_up()
            registry._server.server_close()
            thread.join()

    @property
    def address(self) -> str:
        """`127.0.0.1:PORT`"""
        return f"{self._server.server_address[0]!s}:{self._server.server_port}"

    def add(self, engine: Engine, image: str, as_name: str) -> str:
        """Take a copy of an engine's image; the name (`127.0.0.1:PORT/as_name:tag`) that pulls it."""
        return self.put(*_saved(engine, image), as_name)

    def put_foreign(self, as_name: str) -> str:
        """Take an image for machines of another kind alone; its name."""
        repository, _, tag = as_name.partition(":")
        part = {"mediaType": _MANIFEST, "size": 2, "digest": _Content(_MANIFEST, b"{}").digest}
        part |= {"platform": {"architecture": "s390x", "os": "linux"}}
        listed = {"schemaVersion": 2, "mediaType": _LIST, "manifests": [part]}
        self._manifests[repository, tag] = _Content(_LIST, json.dumps(listed).encode())
        return f"{self.address}/{as_name}"

    def put(self, config: bytes, layers: Sequence[bytes], as_name: str) -> str:
        """Take an image, as its configuration and its layers as tars; its name."""
        repository, _, tag = as_name.partition(":")
        parts = [self._keep(_Content(_CONFIG, config))]
        parts += [self._keep(_Content(_LAYER, gzip.compress(layer, 1, mtime=0))) for layer in layers]
        listed = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": parts[0], "layers": parts[1:]}
        manifest = _Content(_MANIFEST, json.dumps(listed).encode())
        for reference in (tag or "latest", manifest.digest):
            self._manifests[repository, reference] = manifest
        return f"{self.address}/{repository}:{tag or 'latest'}"

    # What the misbehaving ones do otherwise.

    def greets(self) -> None:
        """A connection is open, and nothing of it is read yet."""

    def admits(self, authorization: str) -> bool:
        return True

    def pieces(self, layer: bytes) -> Iterator[bytes]:
        """The layer, as it is sent."""
        yield layer

    # What it has.

    def found(self, path: str) -> "_Content | _Refusal":
        if path == "/v2/":
            return _Content("application/json", b"{}")
        asked = _PATH.fullmatch(path)
        if asked is None:
            return _Refusal(HTTPStatus.NOT_FOUND, "UNSUPPORTED", "the operation is unsupported", {})
        repository, reference = asked["repository"], asked["reference"]
        if asked["kind"] == "blobs":
            return self._blobs.get(reference) or _Refusal(
                HTTPStatus.NOT_FOUND, "BLOB_UNKNOWN", "blob unknown to registry", {"digest": reference}
            )
        if not any(known == repository for known, _ in self._manifests):
            detail = {"name": repository}
            return _Refusal(HTTPStatus.NOT_FOUND, "NAME_UNKNOWN", "repository name not known to registry", detail)
        return self._manifests.get((repository, reference)) or _Refusal(
            HTTPStatus.NOT_FOUND, "MANIFEST_UNKNOWN", "manifest unknown", {"Tag": reference}
        )

    def hold(self) -> None:
        """Until the test releases it, or is at its end."""
        self.held.set()
        self.released.wait()

    def _keep(self, blob: "_Content") -> dict[str, object]:
        self._blobs[blob.digest] = blob
        return {"mediaType": blob.media_type, "size": len(blob.data), "digest": blob.digest}


class RequiresAuth(Registry):
    """Knows one user."""

    USER, PASSWORD = "reader", "let me in"

    def admits(self, authorization: str) -> bool:
        known = base64.b64encode(f"{self.USER}:{self.PASSWORD}".encode()).decode()
        return authorization == f"Basic {known}"


class Hangs(Registry):
    """Accepts connections, and says nothing on them until it is released."""

    def greets(self) -> None:
        self.hold()


class Pauses(Registry):
    """Sends the first half of each layer in small pieces, and the rest when it is released."""

    def pieces(self, layer: bytes) -> Iterator[bytes]:
        size = 1 << 16
        for start in range(0, len(layer), size):
            if start >= len(layer) // 2:
                self.hold()
            yield layer[start : start + size]


@dataclass(frozen=True)
class _Content:
    media_type: str
    data: bytes

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"


@dataclass(frozen=True)
class _Refusal:
    status: HTTPStatus
    code: str
    message: str
    detail: Mapping[str, str]


class _Server(ThreadingHTTPServer):
    """Knows its open connections, so that no thread waits for an engine that keeps one in reserve."""

    daemon_threads = False  # closing waits for them

    def __init__(self, *arguments: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        for connection in tuple(self._open):
            with contextlib.suppress(OSError):  # its thread closed it meanwhile
                connection.shutdown(socket.SHUT_RDWR)


class _Answer(BaseHTTPRequestHandler):
    """One request; the connection closes after it."""

    def __init__(self, registry: Registry, *arguments: Any) -> None:
        self._registry = registry
        super().__init__(*arguments)

    def handle(self) -> None:
        self._registry.greets()
        fault = self._registry.fault
        if fault is not None and not fault.status and not fault.layers:
            self._reset()
            return
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # the engine gave up
            super().handle()

    def do_GET(self) -> None:
        fault = self._registry.fault
        if fault is not None and fault.status and not fault.layers:
            self._fail(fault)
            return
        if not self._registry.admits(self.headers.get("Authorization", "")):
            self._refuse(_Refusal(HTTPStatus.UNAUTHORIZED, "UNAUTHORIZED", "authentication required", {}))
            return
        found = self._registry.found(self.path)
        if isinstance(found, _Refusal):
            self._refuse(found)
            return
        if found.media_type == _LAYER and self.command == "GET":
            self._send(found)
            return
        self._begin(HTTPStatus.OK, found)
        if self.command == "GET":
            self.wfile.write(found.data)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *words: object) -> None:
        """Log nothing."""

    def _send(self, layer: _Content) -> None:
        fault = self._registry.fault
        if fault is not None and fault.status:
            self._fail(fault)
            return
        if fault is not None and "Range" in self.headers:  # the rest, which engines ask for at once
            self._reset()
            return
        self._begin(HTTPStatus.OK, layer)
        if fault is not None:
            self.wfile.write(layer.data[: len(layer.data) // 2])
            self._reset()
            return
        for piece in self._registry.pieces(layer.data):
            self.wfile.write(piece)

    def _fail(self, fault: Fault) -> None:
        body = fault.body.encode()
        self.send_response(fault.status)
        self.send_header("Content-Type", "application/json" if body.startswith(b"{") else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _refuse(self, refusal: _Refusal) -> None:
        error = {"code": refusal.code, "message": refusal.message, "detail": refusal.detail}
        body = _Content("application/json", json.dumps({"errors": [error]}).encode())
        self._begin(refusal.status, body)
        if self.command == "GET":
            self.wfile.write(body.data)

    def _begin(self, status: HTTPStatus, content: _Content) -> None:
        self.send_response(status)
        self.send_header("Docker-Distribution-API-Version", "registry/2.0")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="the tests\' registry"')
        self.send_header("Content-Type", content.media_type)
        self.send_header("Content-Length", str(len(content.data)))
        self.send_header("Docker-Content-Digest", content.digest)
        self.end_headers()


def _saved(engine: Engine, image: str) -> tuple[bytes, list[bytes]]:
    """The configuration of an engine's image, and its layers as tars: what `docker save` writes."""
    with tempfile.TemporaryFile() as file:
        for chunk in engine.client().images.get(image).save():
            file.write(chunk)
        file.seek(0)
        with tarfile.open(fileobj=file) as tar:
            (manifest,) = json.loads(_member(tar, "manifest.json"))
            return _member(tar, manifest["Config"]), [_member(tar, layer) for layer in manifest["Layers"]]


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    content = tar.extractfile(name)
    assert content is not None, f"{name} is no file in what the engine saved"
    return content.read()
