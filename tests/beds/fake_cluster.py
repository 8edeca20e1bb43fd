"""An API server of Kubernetes in this process, which keeps objects and fails as a test tells it to.

It has what the agent relies on: versions that grow, label selectors, watches, merge patches, finalizers and graces. No
controller and no kubelet: a test writes the status of a pod.
"""

import itertools
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from trainyard_agent.engines.kubernetes.api.client import KubeClient
from trainyard_agent.engines.kubernetes.api.connection import KubeConnection

Object = dict[str, Any]
NAMESPACE = "jobs"


@dataclass(frozen=True)
class Fault:
    """Failure of one request. `status`: this answer in place of the work, with these `headers`. `lost`: the work
    is done, and the connection closed without an answer; `dropped`: it is not done. `hangs`: no answer at all.
    `events`: the stream of a watch, which ends after these. `chunks`: the stream of a log. `is_cut`: the stream breaks
    off, else it ends in order."""

    status: int = 0
    message: str = "as the test says"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    lost: bool = False
    dropped: bool = False
    hangs: bool = False
    events: tuple[Object, ...] | None = None
    chunks: tuple[bytes, ...] | None = None
    is_cut: bool = False


class FakeCluster:
    """Objects by path. `requests` has every request, as `METHOD path`. `token`: what callers must bear, if anything."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.version = 100
        self.objects: dict[str, Object] = {}
        self.requests: list[str] = []
        self.watches: list[str] = []
        """The versions from which pods were watched."""
        self.token = ""
        self.groups: dict[str, list[str]] = {}
        """Resources by `group/version`, beside those of the core."""
        self.webhook: Callable[[str, Object], None] = lambda _path, _body: None
        """Called with the path and the body of each creation; it may change the body."""
        self.changed = threading.Condition(threading.RLock())
        self.is_over = False
        self.restores = 0
        self._events: list[tuple[int, str, str, Object]] = []
        self._faults: list[tuple[str, str, Fault]] = []
        self._uids = itertools.count(1)

    def client(self, auth: httpx.Auth | None = None) -> KubeClient:
        return KubeClient(KubeConnection(self.url, ssl.create_default_context(), auth, NAMESPACE))

    def fail(self, method: str, path: str, *faults: Fault) -> None:
        """The next requests whose path ends so fail, each in its way. A watch has the method WATCH."""
        with self.changed:
            self._faults += [(method, path, fault) for fault in faults]

    def claim_fault(self, method: str, path: str) -> Fault | None:
        with self.changed:
            for entry in self._faults:
                if entry[0] == method and path.endswith(entry[1]):
                    self._faults.remove(entry)
                    return entry[2]
        return None

    @property
    def faults_left(self) -> int:
        return len(self._faults)

    # Objects.

    def names(self, kind: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.objects if path.split("/")[-2] == kind)

    def create(self, path: str, body: Object) -> tuple[int, Object]:
        with self.changed:
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                return 409, status(409, "it already exists", "AlreadyExists")
            made = json.loads(json.dumps(body))
            self.webhook(path.rpartition("/")[0], made)
            made["metadata"] |= {"uid": f"uid-{next(self._uids)}", "namespace": NAMESPACE}
            made.setdefault("status", {"phase": "Pending"} if "/pods/" in path else {})
            return 201, self._store(path, made, "ADDED")

    def patch(self, path: str, body: Object) -> tuple[int, Object]:
        with self.changed:
            if path not in self.objects:
                return 404, status(404, "not found", "NotFound")
            wanted = body.get("metadata", {}).get("resourceVersion")
            if wanted not in (None, self.objects[path]["metadata"]["resourceVersion"]):
                return 409, status(409, "the object has been modified", "Conflict")
            merged = _merged(self.objects[path], body)
            if problem := _too_large(merged):
                return 422, status(422, problem, "Invalid")
            return 200, self._store(path, merged, "MODIFIED")

    def delete(self, path: str, grace_s: int | None = None) -> tuple[int, Object]:
        with self.changed:
            if path not in self.objects:
                return 404, status(404, "not found", "NotFound")
            found = json.loads(json.dumps(self.objects[path]))
            metadata = found["metadata"]
            if "/pods/" in path:
                grace = metadata.get("deletionGracePeriodSeconds", grace_s if grace_s is not None else 30)
                metadata["deletionGracePeriodSeconds"] = min(grace, grace if grace_s is None else grace_s)
                metadata.setdefault("deletionTimestamp", "2026-01-01T10:00:00Z")
                return 200, self._store(path, found, "MODIFIED")
            return 200, self._remove(path)

    def set_status(self, pod: str, **changes: object) -> None:
        """Write it like a kubelet or a controller."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}"
        self.patch(path, {"status": changes})

    def select(self, path: str, selector: str) -> list[Object]:
        wanted = dict(term.split("=") for term in selector.split(",") if term)
        with self.changed:
            return [
                one
                for name, one in sorted(self.objects.items())
                if name.rpartition("/")[0] == path and wanted.items() <= (one["metadata"].get("labels") or {}).items()
            ]

    def _store(self, path: str, found: Object, kind: str) -> Object:
        self.version += 1
        found = json.loads(json.dumps(found))  # watches still send the versions before
        found["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = found
        self._record(kind, path, found)
        metadata = found["metadata"]
        if (
            "deletionTimestamp" in metadata
            and metadata["deletionGracePeriodSeconds"] == 0
            and not metadata.get("finalizers")
        ):
            return self._remove(path)
        return found

    def _remove(self, path: str) -> Object:
        self.version += 1
        found = self.objects.pop(path)
        found = {**found, "metadata": {**found["metadata"], "resourceVersion": str(self.version)}}
        self._record("DELETED", path, found)
        return found

    def _record(self, kind: str, path: str, found: Object) -> None:
        self._events.append((self.version, kind, path, found))
        self.changed.notify_all()

    def events_after(self, version: int, path: str) -> list[tuple[int, Object]]:
        with self.changed:
            return [
                (number, {"type": kind, "object": found})
                for number, kind, name, found in self._events
                if number > version and name.rpartition("/")[0] == path
            ]

    def restore(self) -> None:
        """Go back to an empty store of long ago, as after a restore of etcd. All watches end."""
        with self.changed:
            self.objects.clear()
            self._events.clear()
            self.version = 10
            self.restores += 1


def status(code: int, message: str, reason: str = "") -> Object:
    return {"kind": "Status", "code": code, "message": message, "reason": reason}


def _too_large(found: Object) -> str:
    """The limits of an API server, in bytes."""
    annotations = found["metadata"].get("annotations") or {}
    limits = {"metadata.annotations": (annotations, 256 << 10), "data": (found.get("data") or {}, 1 << 20)}
    for what, (values, limit) in limits.items():
        if sum(len(f"{key}{value}".encode()) for key, value in values.items()) > limit:
            return f"{what}: Too long: must have at most {limit} bytes"
    return ""


def _merged(target: Object, patch: Object) -> Object:
    merged = dict(target)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merged(merged.get(key) or {}, value)
        else:
            merged[key] = value
    return merged


def handler(cluster_of: Callable[[], FakeCluster]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            cluster, parts = cluster_of(), urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            method = "WATCH" if query.get("watch") else self.command
            with cluster.changed:
                restores = cluster.restores
                cluster.requests.append(f"{method} {parts.path}")
                if method == "WATCH":
                    cluster.watches.append(query["resourceVersion"])
                cluster.changed.notify_all()
            if cluster.token and self.headers.get("Authorization") != f"Bearer {cluster.token}":
                self._send(401, status(401, "Unauthorized", "Unauthorized"))
                return
            fault = cluster.claim_fault(method, parts.path)
            if fault is not None and self._fail(fault):
                return
            if method == "WATCH":
                self._watch(cluster, parts.path, int(query["resourceVersion"]), restores)
                return
            code, found = self._work(cluster, parts.path, query, body)
            if fault is not None and fault.lost:
                self._drop()
            else:
                self._send(code, found)

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_PATCH(self) -> None:
            self._answer()

        def do_DELETE(self) -> None:
            self._answer()

        def _work(self, cluster: FakeCluster, path: str, query: Mapping[str, str], body: Object) -> tuple[int, Object]:
            if self.command == "POST":
                return cluster.create(path, body)
            if self.command == "PATCH":
                return cluster.patch(path, body)
            if self.command == "DELETE":
                return cluster.delete(path, body.get("gracePeriodSeconds"))
            if path == "/version":
                return 200, {"gitVersion": "v1.99.0-eks-123"}
            if path.startswith("/apis/") and path.count("/") == 3:
                resources = cluster.groups.get(path.removeprefix("/apis/"))
                if resources is None:
                    return 404, status(404, "not found", "NotFound")
                return 200, {"resources": [{"name": name} for name in resources]}
            if path.endswith("/log"):
                return 404, status(404, "no log", "NotFound")
            if path in cluster.objects:
                return 200, cluster.objects[path]
            if path.count("/") % 2 == (1 if path.startswith("/api/") else 0):
                with cluster.changed:
                    items = cluster.select(path, query.get("labelSelector", ""))
                    return 200, {"metadata": {"resourceVersion": str(cluster.version)}, "items": items}
            return 404, status(404, "not found", "NotFound")

        def _fail(self, fault: Fault) -> bool:
            """False if the work is to be done all the same."""
            if fault.hangs:
                cluster = cluster_of()
                with cluster.changed:
                    cluster.changed.wait_for(lambda: cluster.is_over, 60)
                self._drop()
                return True
            if fault.dropped:
                self._drop()
                return True
            if fault.events is not None or fault.chunks is not None:
                events = (json.dumps(event).encode() + b"\n" for event in fault.events or ())
                self._stream(fault.chunks if fault.chunks is not None else events)
                self._end(fault.is_cut)
                return True
            if fault.body is not None:
                self._send_bytes(fault.status, fault.body, fault.headers)
                return True
            if fault.status:
                self._send(fault.status, status(fault.status, fault.message), fault.headers)
                return True
            return False

        def _watch(self, cluster: FakeCluster, path: str, version: int, restores: int) -> None:
            self._stream(())
            with suppress(OSError):
                while not cluster.is_over and cluster.restores == restores:
                    for number, event in cluster.events_after(version, path):
                        self._chunk(json.dumps(event).encode() + b"\n")
                        version = number
                    with cluster.changed:
                        cluster.changed.wait(0.05)
            self._drop()

        def _stream(self, chunks: Iterator[bytes] | tuple[bytes, ...]) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in chunks:
                self._chunk(chunk)

        def _chunk(self, content: bytes) -> None:
            self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

        def _end(self, is_cut: bool) -> None:
            if is_cut:
                self._drop()
            else:
                self.wfile.write(b"0\r\n\r\n")

        def _drop(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def _send(self, code: int, body: Object, headers: Mapping[str, str] | None = None) -> None:
            self._send_bytes(code, json.dumps(body).encode(), headers or {})

        def _send_bytes(self, code: int, content: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(code)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    return Handler


@contextmanager
def fake_cluster() -> Iterator[FakeCluster]:
    cluster: FakeCluster
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(lambda: cluster)) as server:
        server.daemon_threads = True
        cluster = FakeCluster(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield cluster
        finally:
            with cluster.changed:
                cluster.is_over = True
                cluster.changed.notify_all()
            server.shutdown()
            thread.join()
