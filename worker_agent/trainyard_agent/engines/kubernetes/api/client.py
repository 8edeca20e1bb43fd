"""Client of a Kubernetes API server. Objects are dicts, as the API has them.

Every call blocks, is thread-safe, and fails with one of two errors: KubeDown (no answer: whether it was done is
unknown) or KubeRefused (an error status).
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from trainyard_agent.engines.kubernetes.api.connection import KubeConnection
from trainyard_agent.runtimes.base import EngineUnavailable

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

KubeObject = dict[str, Any]

_CALL_S = 30.0
_WATCH_S = 60  # one watch; then the next goes on where it ended
_RETRY_S = 1.0
_CLOSING_PAUSE_S = _CONFLICT_PAUSE_S = 0.1
_TRIES = 5
_PAGE = 500
_FORBIDDEN, _CONFLICT, _BUSY = 403, 409, 429
_FINAL = (400, _FORBIDDEN, 405, 413, 415, 422)
"""Statuses of requests that break a rule: a role, an admission policy, a RuntimeClass or priority class that is not
there, a limit of the API."""

_PASSING = ("exceeded quota", "status unknown for quota", "error looking up service account")
"""Words of refusals with such a status that pass by themselves, as others give back what they have of a quota."""

_AWAY = (502, 503, 504)  # of a proxy before the API server, or of one that starts or ends


class KubeError(EngineUnavailable):
    """A request to the API server failed. `message` is the server's own, or says that it does not answer. `is_final`:
    the same request would fail again."""

    is_final = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class KubeDown(KubeError):
    """The API server does not answer."""


class KubeNamespaceMissing(KubeDown):
    """There is no such namespace, or it is removed now."""


class KubeRefused(KubeError):
    """The API server answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.is_final = status in _FINAL and not any(words in message for words in _PASSING)


class LogQuiet(KubeError):
    """Nothing came of a log that was followed."""


class KubeClient:
    """Calls about the objects of one namespace."""

    def __init__(self, connection: KubeConnection, namespace: str = "") -> None:
        self._groups: dict[str, str] = {}
        """The API groups of kinds that are not of the core."""
        self._connection = connection
        self.server = connection.server
        self.namespace = namespace or connection.namespace
        self._http = httpx.Client(
            base_url=connection.server,
            verify=connection.tls,
            auth=connection.auth,
            timeout=_CALL_S,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
            trust_env=False,
        )
        self._users = threading.Condition()
        self._in_use = 0
        self._streams: set[socket.socket] = set()
        self._is_closed = False

    def close(self) -> None:
        """End the streams that other threads read, wait for their calls, and close the connections. A connection that
        is closed under a reader would have it read from the next one with the same descriptor."""
        deadline = time.monotonic() + _CALL_S
        with self._users:
            self._is_closed = True
            while self._in_use and time.monotonic() < deadline:
                for connection in self._streams:
                    with contextlib.suppress(OSError):  # it has ended
                        socket.socket.shutdown(connection, socket.SHUT_RDWR)
                self._users.wait(_CLOSING_PAUSE_S)
            if not self._in_use:
                self._http.close()

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """A use of the connections. Raises KubeDown once they are closed."""
        with self._users:
            if self._is_closed:
                raise KubeDown(f"The connection to {self.server} is closed.")
            self._in_use += 1
        try:
            yield
        finally:
            with self._users:
                self._in_use -= 1
                self._users.notify_all()

    @contextlib.contextmanager
    def _stream(self, path: str, params: Mapping[str, str], timeout: httpx.Timeout) -> Iterator[httpx.Response]:
        """An answer that is read as it comes, until `close`."""
        with self._using(), self._http.stream("GET", path, params=params, timeout=timeout) as answer:
            connection = answer.extensions["network_stream"].get_extra_info("socket")
            with self._users:
                self._streams.add(connection)
            try:
                self._check(answer)
                yield answer
            finally:
                with self._users:
                    self._streams.discard(connection)

    def of_cluster(self, kind: str, field_selector: str = "") -> Iterator[KubeObject]:
        """All objects of a kind, of all namespaces, which come in pages."""
        params = {"limit": str(_PAGE), "fieldSelector": field_selector}
        while True:
            page = self._call("GET", f"/api/v1/{kind}", params=params) or {}
            yield from page.get("items") or ()
            params["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not params["continue"]:
                return

    def has_group(self, group: str) -> bool:
        """Whether the API server has an API group, of its own or by another server."""
        return self._call("GET", f"/apis/{group}") is not None

    def pod_metrics(self, selector: str) -> list[KubeObject]:
        """The usage of the pods with these labels, as last measured."""
        path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{self.namespace}/pods"
        listed = self._call("GET", path, params={"labelSelector": selector}) or {}
        return list(listed.get("items") or ())

    def list(self, kind: str, selector: str) -> tuple[list[KubeObject], str]:
        """The objects with these labels, and the version of the list."""
        listed = self._call("GET", self._path(kind), params={"labelSelector": selector}) or {}
        version = (listed.get("metadata") or {}).get("resourceVersion")
        if not version:
            raise KubeDown(f"{self.server} sent a damaged answer: a list of {kind} without a version.")
        return list(listed.get("items") or ()), str(version)

    def get(self, kind: str, name: str) -> KubeObject | None:
        return self._call("GET", self._path(kind, name))

    def create(self, kind: str, body: KubeObject) -> KubeObject:
        """Create it. If it is there already, an earlier attempt made it, whose answer was lost: it is returned. Else a
        conflict is that of a ResourceQuota, which another creation has just changed: it is tried again."""
        for attempt in range(1, _TRIES + 1):
            try:
                created = self._call("POST", self._path(kind), body)
            except KubeRefused as refused:
                if refused.status != _CONFLICT:
                    raise
                created = self.get(kind, body["metadata"]["name"])
                if created is None and attempt == _TRIES:
                    raise
                if created is None:
                    time.sleep(_CONFLICT_PAUSE_S * attempt)
                    continue
            break
        if created is None:
            raise KubeNamespaceMissing(f"{self.server} has no namespace {self.namespace}, or removes it.")
        return created

    def patch(self, kind: str, name: str, body: KubeObject) -> KubeObject | None:
        """Merge it into the object; None if there is none."""
        return self._call("PATCH", self._path(kind, name), body, content_type="application/merge-patch+json")

    def delete(self, kind: str, name: str, grace_s: int | None = None) -> None:
        body: KubeObject = {"propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        self._call("DELETE", self._path(kind, name), body)

    def log(self, pod: str, container: str, since: str, quiet_s: float | None) -> Iterator[bytes]:
        """The bytes of a container's log, each line with its time, from a whole second on ("": the beginning). With
        `quiet_s` it follows the log, and raises LogQuiet when nothing came for so long."""
        params = {"timestamps": "true", "container": container}
        params |= {"sinceTime": since} if since else {}
        params |= {"follow": "true"} if quiet_s is not None else {}
        timeout = httpx.Timeout(_CALL_S, read=quiet_s or _CALL_S)
        try:
            with self._stream(self._path("pods", pod, "log"), params, timeout) as answer:
                yield from answer.iter_raw()
        except httpx.ReadTimeout as error:
            if quiet_s is None:
                raise self._down(error) from error
            raise LogQuiet("the log is quiet") from error
        except httpx.HTTPError as error:
            raise self._down(error) from error

    def last_log_line(self, pod: str, container: str) -> bytes:
        """The last line of a container's log, with its time; b"" if there is none."""
        params = {"timestamps": "true", "container": container, "tailLines": "1"}
        try:
            with self._stream(self._path("pods", pod, "log"), params, httpx.Timeout(_CALL_S)) as answer:
                return answer.read()
        except httpx.HTTPError as error:
            raise self._down(error) from error

    def open_socket(self, kind: str, name: str, part: str, query: str, protocols: Sequence[str]) -> "ClientConnection":
        """A WebSocket to a subresource, for threads, with one of these protocols; its user closes it."""
        from trainyard_protocol.net.sockets import SocketRefused, open_socket

        url = f"{self.server}{self._path(kind, name, part)}?{query}"
        request = httpx.Request("GET", url)
        try:
            if self._connection.auth is not None:
                request = next(self._connection.auth.sync_auth_flow(request))
            headers = {name: value for name, value in request.headers.items() if name == "authorization"}
            tls = self._connection.tls if url.startswith("https") else None
            return open_socket(url, headers, tls, protocols=protocols)
        except SocketRefused as error:
            if not error.status:
                raise self._down(error) from error
            raise KubeRefused(error.status, _message_of(error.body) or str(error)) from error
        except httpx.HTTPError as error:
            raise self._down(error) from error

    def version(self) -> str:
        """Version of the API server: `v1.34.1`."""
        return str((self._call("GET", "/version") or {}).get("gitVersion") or "")

    def has(self, version: str, kind: str) -> bool:
        """Whether the cluster has this kind in this `group/version`, and lets the caller see that."""
        try:
            listed = self._call("GET", f"/apis/{version}") or {}
        except KubeRefused as refused:
            if refused.status != _FORBIDDEN:
                raise
            return False
        return any(resource["name"] == kind for resource in listed.get("resources") or ())

    def serve(self, kind: str, path: str) -> None:
        """Find a kind that is not of the core there from now on."""
        self._groups[kind] = path

    def lacks_namespace(self) -> bool:
        """Whether the namespace is certainly not there: most roles of agents may not look."""
        try:
            return self._call("GET", f"/api/v1/namespaces/{self.namespace}") is None
        except KubeRefused:
            return False

    def may(self, verb: str, group: str, kind: str) -> bool:
        """Whether the caller's roles allow it in the namespace. Anybody may ask."""
        resource, _, part = kind.partition("/")
        wanted = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        wanted |= {"subresource": part} if part else {}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        answer = self._call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review) or {}
        return bool((answer.get("status") or {}).get("allowed"))

    def watch(self, kind: str, selector: str, version: str) -> Iterator[tuple[str, KubeObject]]:
        """Changes after this version: ADDED, MODIFIED, DELETED or BOOKMARK, and the object. Raises KubeRefused with 410
        if it is too old."""
        params = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        timeout = httpx.Timeout(_CALL_S, read=_WATCH_S + _CALL_S)
        try:
            with self._stream(self._path(kind), params, timeout) as answer:
                for line in _lines(answer.iter_bytes()):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise KubeRefused(int(status.get("code") or 500), str(status.get("message")))
                    yield event["type"], event["object"]
        except httpx.HTTPError as error:
            raise self._down(error) from error
        except (ValueError, KeyError, TypeError) as error:  # half a line: the server was killed
            raise KubeDown(f"{self.server} sent a damaged answer: {error!r}.") from error

    def _path(self, kind: str, name: str = "", part: str = "") -> str:
        parts = (self._groups.get(kind, "/api/v1"), "namespaces", self.namespace, kind, name, part)
        return "/".join(part for part in parts if part)

    def _call(
        self,
        method: str,
        path: str,
        body: KubeObject | None = None,
        *,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> KubeObject | None:
        """The answer; None if there is no such object. Tried again where the server is busy, and once where a
        connection broke, as an idle one does that the server closes: each call is the same if it is made twice."""
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": content_type}
        broke = False
        for attempt in range(1, _TRIES + 1):
            try:
                with self._using():
                    answer = self._http.request(method, path, content=content, headers=headers, params=params)
            except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
                if broke or isinstance(error, httpx.ConnectError):
                    raise self._down(error) from error
                broke = True
                continue
            except httpx.HTTPError as error:
                raise self._down(error) from error
            if answer.status_code != _BUSY or attempt == _TRIES:
                break
            wait = answer.headers.get("Retry-After", "")  # it may be a date, of a proxy
            time.sleep(min(_CALL_S, float(wait)) if wait.isdecimal() else _RETRY_S)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        self._check(answer)
        try:
            decoded = answer.json()
        except ValueError as error:
            raise KubeDown(f"{self.server} sent a damaged answer: {error}.") from error
        if not isinstance(decoded, dict):
            raise KubeDown(f"{self.server} sent a damaged answer: no object.")
        return decoded

    def _check(self, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        answer.read()
        message = _message_of(answer.content) or f"{self.server} answered {answer.status_code}"
        if answer.status_code in _AWAY:
            raise KubeDown(message)
        raise KubeRefused(answer.status_code, message)

    def _down(self, error: Exception) -> KubeDown:
        return KubeDown(f"The API server at {self.server} does not answer ({str(error) or type(error).__name__}).")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines that end with a newline. httpx ends them at further characters, which JSON may have within a text."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _message_of(body: bytes) -> str:
    """The message of an error; "" where it has none."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return ""
