"""Client of the container engine, over Docker's SDK, which is loaded once there is an engine to ask.

Every call blocks, is thread-safe, and fails with one of two errors: EngineDown (no answer, or not in time: whether it
was done is unknown) or EngineRefused (an error status).
"""

import base64
import contextlib
import io
import ipaddress
import json
import logging
import socket
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from trainyard_agent.engines.docker.settings import address
from trainyard_agent.engines.docker.streams.exec_attachment import ExecAttachment
from trainyard_agent.runtimes.base import EngineUnavailable
from trainyard_protocol.wire.attachments import Terminal

if TYPE_CHECKING:
    import docker
    import requests

CALL_S = 60.0
"""Timeout of a request to the engine."""

STATS_S = 5.0
"""Timeout of a request for a container's usage."""

_BLOCK = 64 * 1024
_UPGRADED = 101
_POOL = 64  # connections: following a log holds one for as long as its container lives
_DIRECTORY, _SYMLINK, _EXECUTABLE = 1 << 31, 1 << 27, 0o111  # Go's file modes

_log = logging.getLogger(__name__)


class EngineError(EngineUnavailable):
    """A request to the engine failed. `message` is the engine's own, or says which engine does not answer."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class EngineDown(EngineError):
    """The engine does not answer. `cause` is the system's message ("No such file or directory")."""

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause


class EngineTimeout(EngineDown):
    """The engine accepted the request and did not answer in time."""


class EngineRefused(EngineError):
    """The engine answered with an HTTP error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Container:
    """A container in the engine's list. `state` is the engine's term (`created`, `running`, `exited`, ...)."""

    id: str
    state: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Information about the engine."""

    name: str
    version: str
    cpus: int
    memory_bytes: int
    live_restore: bool
    user_namespace: bool = False
    """Root of a container is another user of the host (rootless, userns-remap)."""
    root: str = ""
    """The directory of its images and containers, by its own path."""


class LogStream:
    """A container's output, as the engine's frames of bytes. To be closed by its reader."""

    def __init__(self, response: "requests.Response") -> None:
        self._response = response
        self._interrupted = False

    def __iter__(self) -> Iterator[bytes]:
        """Yield chunks as the engine sends them. Raises EngineDown when the connection breaks, or is interrupted."""
        import requests
        import urllib3

        try:
            yield from self._response.iter_content(chunk_size=None)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise EngineDown(f"the log stream was cut ({error})") from error
        if self._interrupted:
            raise EngineDown("the log stream was interrupted")

    def interrupt(self) -> None:
        """End a blocking read in another thread, and the stream."""
        self._interrupted = True
        connection = getattr(self._response.raw, "connection", None)
        sock = getattr(connection, "sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):  # it has ended
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._response.close()


class DockerClient:
    """A client of one engine. `url` is as in DOCKER_HOST; "": the environment's, else this machine's socket.
    `timeout_s` is for requests without a timeout of their own."""

    def __init__(self, url: str = "", timeout_s: float = CALL_S) -> None:
        self._timeout_s = timeout_s
        self.url = url or address()
        self._lock = threading.Lock()
        self._connected: docker.APIClient | None = None

    def close(self) -> None:
        with self._lock:
            if self._connected is not None:
                self._connected.close()
            self._connected = None

    def about(self) -> EngineInfo:
        with self._call() as api:
            info = api.info()
        return EngineInfo(
            name=info["Name"],
            version=info["ServerVersion"],
            cpus=int(info["NCPU"]),
            memory_bytes=int(info["MemTotal"]),
            root=str(info.get("DockerRootDir") or ""),
            live_restore=bool(info.get("LiveRestoreEnabled")),
            user_namespace=any(
                option.startswith(("name=rootless", "name=userns")) for option in info.get("SecurityOptions") or ()
            ),
        )

    def ping(self) -> None:
        """Ask for nothing but an answer."""
        with self._call() as api:
            api.ping()

    def process(self) -> str:
        """The engine's process, as `pid:start time` of this boot; "" if it is not visible. Raises EngineDown.

        A container that ran under one process and has ended under another one ended with the first.
        """
        scheme, _, path = self.url.partition("://")
        if scheme != "unix":
            return ""
        try:
            pid = _listener(path)
            if pid <= 1:
                pid = _find_dockerd()
            return f"{pid}:{psutil.Process(pid).create_time()}" if pid else ""
        except OSError as error:
            raise self._down(error.strerror or str(error)) from error
        except psutil.Error:
            return ""

    # Containers.

    def containers(self, *labels: str) -> list[Container]:
        """All containers with these labels (`name=value`), in any state."""
        with self._call() as api:
            entries = api.containers(all=True, filters={"label": list(labels)})
        return [Container(entry["Id"], entry["State"], entry.get("Labels") or {}) for entry in entries]

    def create(self, name: str, spec: Mapping[str, Any]) -> str:
        """Create a container. Returns its id."""
        with self._call() as api:
            created = api.create_container_from_config(dict(spec), name)
        return str(created["Id"])

    def inspect(self, container: str) -> dict[str, Any] | None:
        """The inspection of a container; None if there is no such container."""
        return self._inspect(lambda api: dict(api.inspect_container(container)))

    def stats(self, container: str) -> dict[str, Any] | None:
        """The current usage of a container, as the engine reports it; None if there is no such container."""
        params = {"stream": 0, "one-shot": 1}  # one-shot: without a second sample a second later
        response = self._get(f"/containers/{container}/stats", params, timeout=STATS_S)
        return None if response is None else dict(response.json())

    def disk_bytes(self, container: str) -> int:
        """The size of a container's writable layer and of the volumes that its image declares; 0 if there is no such
        container."""
        response = self._get(f"/containers/{container}/json", {"size": 1})
        if response is None:
            return 0
        inspection = response.json()
        names = {mount.get("Name") for mount in inspection["Mounts"] if mount["Type"] == "volume"}
        volumes: Sequence[Mapping[str, Any]] = ()
        if names:
            try:
                measured = self._get("/system/df", {"type": "volume"})
                volumes = (measured.json().get("Volumes") or ()) if measured is not None else ()
            except EngineRefused as refused:
                if refused.status != 409:  # somebody else measures now
                    raise
        of_volumes: int = sum(max(0, volume["UsageData"]["Size"]) for volume in volumes if volume["Name"] in names)
        return int(inspection.get("SizeRw") or 0) + of_volumes

    def program_error(self, container: str, program: str, path: str, directory: str) -> str:
        """The reason why a created container cannot execute `program`, looked up in `path`, or in its working
        `directory` if it is relative; "" if it probably can. The engine does not check this if there is an init."""
        if program.startswith("/"):
            candidates = [program]
        elif "/" in program:
            candidates = [f"{directory}/{program}"]
        else:
            candidates = [f"{entry}/{program}" for entry in path.split(":")]
        error = f"there is no program {program!r} in its image"
        for candidate in candidates:
            mode = self._mode(container, candidate)
            if mode is None:
                continue
            if mode & _SYMLINK:
                return ""  # its target is known only inside
            if mode & _DIRECTORY:
                error = f"{candidate} is a directory in its image"
            elif not mode & _EXECUTABLE:
                error = f"{candidate} is not executable in its image"
            else:
                return ""
        return error

    def mode(self, container: str, path: str) -> int | None:
        """The permissions of a directory of a created container; None if there is none, or a link in its place."""
        mode = self._mode(container, path)
        return mode & 0o7777 if mode is not None and mode & _DIRECTORY else None

    def extract(self, container: str, tar: bytes) -> None:
        """Extract a tar archive at the root of a created container."""
        with self._call() as api:
            api.put_archive(container, "/", tar)

    def read_file(self, container: str, path: str, most_bytes: int) -> bytes:
        """A regular file of a container, running or not; b"" if there is none, or anything else, or a larger one. The
        engine looks for it in the container alone, whatever links are there."""
        response = self._get(f"/containers/{container}/archive", {"path": path}, stream=True)
        if response is None:
            return b""
        content = bytearray()
        with self._call(), contextlib.closing(response):
            for part in response.iter_content(_BLOCK):
                content += part
                if len(content) > most_bytes + _BLOCK:
                    return b""
        try:
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
                member = tar.next()
                file = tar.extractfile(member) if member is not None and member.isreg() else None
                return file.read() if file is not None else b""
        except tarfile.TarError:
            return b""

    def start(self, container: str) -> None:
        with self._call() as api:
            api.start(container)

    def stop(self, container: str, grace_s: int) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s`. Blocks until then; goes on if the caller dies. Without a running
        container nothing happens."""
        with self._call_ignoring_gone() as api:
            api.stop(container, grace_s)

    def kill(self, container: str) -> None:
        """Send SIGKILL. Without a running container nothing happens."""
        with self._call_ignoring_gone() as api:
            api.kill(container, "SIGKILL")

    def remove(self, container: str) -> None:
        """Kill and remove a container with its anonymous volumes, if there is one."""
        with self._call_ignoring_gone() as api:
            api.remove_container(container, force=True, v=True)

    def log(self, container: str, follow: bool) -> LogStream | None:
        """The whole log, with times. None if there is no such container."""
        params = {"stdout": 1, "stderr": 1, "timestamps": 1, "follow": int(follow)}
        timeout = (CALL_S, None if follow else CALL_S)
        response = self._get(f"/containers/{container}/logs", params, stream=True, timeout=timeout)
        return None if response is None else LogStream(response)

    # Commands in containers.

    def start_exec(
        self,
        container: str,
        command: Sequence[str],
        terminal: Terminal | None,
        variables: Mapping[str, str] | None = None,
        end: Callable[[bool], None] = lambda _: None,
    ) -> ExecAttachment:
        """Start a command in a running container, with its variables and further ones, its working directory and user.
        `end`: see ExecAttachment."""
        with self._call() as api:
            created = api.exec_create(
                container,
                list(command),
                stdin=True,
                tty=terminal is not None,
                environment={**(variables or {}), **({} if terminal is None else {"TERM": terminal.kind})},
            )
            exec_id = str(created["Id"])
            response = api.post(
                self._url(api, f"/exec/{exec_id}/start"),
                json={"Tty": terminal is not None, "Detach": False},
                headers={"Connection": "Upgrade", "Upgrade": "tcp"},
                stream=True,
                timeout=(CALL_S, CALL_S),
            )
            if response.status_code != _UPGRADED:
                _check(response)
        attachment = ExecAttachment(self, exec_id, response, end, on_terminal=terminal is not None)
        if terminal is not None:
            attachment.resize(terminal)
        return attachment

    def resize_exec(self, exec_id: str, rows: int, columns: int) -> None:
        with self._call() as api:
            api.exec_resize(exec_id, rows, columns)

    def inspect_exec(self, exec_id: str) -> Mapping[str, Any]:
        with self._call() as api:
            state: Mapping[str, Any] = api.exec_inspect(exec_id)
            return state

    # Networks.

    def create_network(self, spec: Mapping[str, Any]) -> str:
        """Create a network. Returns its id."""
        with self._call() as api:
            response = api.post(self._url(api, "/networks/create"), json=dict(spec), timeout=CALL_S)
            _check(response)
            return str(response.json()["Id"])

    def subnet(self, network: str) -> str:
        """The network's IPv4 subnet, as `172.18.0.0/16`."""
        with self._call() as api:
            configs = api.inspect_network(network)["IPAM"]["Config"]
        return next(str(config["Subnet"]) for config in configs if "." in config["Subnet"])

    def gateway(self) -> str:
        """The host's address on the engine's default bridge; `host-gateway`, which only an engine can resolve, if it
        is unknown; "" without a bridge.

        An engine that has made the bridge itself, as after each boot, does not name it (Docker 20.10): it is the first
        address of the subnet then.
        """
        bridge = self._inspect(lambda api: dict(api.inspect_network("bridge")))
        if bridge is None:
            return ""
        config = next(iter((bridge.get("IPAM") or {}).get("Config") or [{}]))
        if config.get("Gateway"):
            return str(config["Gateway"])
        if not config.get("Subnet") or config.get("IPRange"):
            return "host-gateway"
        return str(next(ipaddress.ip_network(config["Subnet"]).hosts()))

    def networks(self, *labels: str) -> dict[str, Mapping[str, str]]:
        """The labels of all networks with these labels, by id."""
        with self._call() as api:
            entries = api.networks(filters={"label": list(labels)})
        return {entry["Id"]: entry.get("Labels") or {} for entry in entries}

    def remove_network(self, network: str) -> None:
        """Remove a network, if there is one."""
        with self._call_ignoring_gone() as api:
            api.remove_network(network)

    def release_network(self, network: str) -> None:
        """Disconnect every endpoint that the engine counts. It may be of a removed container: a busy engine can leak an
        endpoint, and then never removes the network (moby/moby#33156)."""
        inspection = self._inspect(lambda api: dict(api.inspect_network(network))) or {}
        for endpoint in (inspection.get("Containers") or {}).values():
            with self._call_ignoring_gone() as api:
                api.disconnect_container_from_network(endpoint["Name"], network, force=True)

    # Images.

    def image(self, name: str) -> dict[str, Any] | None:
        """The inspection of a local image, by name or id; None if there is none."""
        return self._inspect(lambda api: dict(api.inspect_image(name)))

    def pull(self, name: str, progress: Callable[[Mapping[str, Any]], None], silence_s: float) -> None:
        """Pull an image, with the credentials of this user's Docker configuration.

        `progress` gets the engine's progress events. Raises EngineRefused with the registry's message, EngineTimeout
        after `silence_s` without an event.
        """
        with self._call() as api:
            from docker.utils import parse_repository_tag

            repository, tag = parse_repository_tag(name)
            response = api.post(
                self._url(api, "/images/create"),
                params={"fromImage": repository, "tag": tag or "latest"},
                headers=_credentials(repository),
                stream=True,
                timeout=(CALL_S, silence_s),
            )
            with response:
                _check(response)
                for line in filter(bytes.strip, response.iter_lines()):
                    event = json.loads(line)
                    if "error" in event:
                        detail = event.get("errorDetail") or {}
                        raise EngineRefused(int(detail.get("code") or 500), str(event["error"]))
                    progress(event)

    def _mode(self, container: str, path: str) -> int | None:
        with self._call() as api:
            url = self._url(api, f"/containers/{container}/archive")
            response = api.head(url, params={"path": path}, timeout=CALL_S)
        if response.status_code != 200:
            return None
        stat = json.loads(base64.b64decode(response.headers["X-Docker-Container-Path-Stat"]))
        return int(stat["mode"])

    def _get(self, path: str, params: Mapping[str, Any], **how: Any) -> "requests.Response | None":
        """The answer to a request that the SDK has no method for, or none with our timeouts; None for 404."""
        with self._call() as api:
            response = api.get(self._url(api, path), params=params, **{"timeout": CALL_S, **how})
            if response.status_code == 404:
                response.close()
                return None
            _check(response)
            return response

    def _inspect(self, ask: Callable[["docker.APIClient"], dict[str, Any]]) -> dict[str, Any] | None:
        """The result of an inspection; None for 404."""
        try:
            with self._call() as api:
                return ask(api)
        except EngineRefused as refused:
            if refused.status == 404:
                return None
            raise

    def _down(self, cause: str) -> EngineDown:
        return EngineDown(f"the container engine at {self.url} does not answer ({cause})", cause)

    @contextmanager
    def _call(self) -> Iterator["docker.APIClient"]:
        """Translate the SDK's errors into ours. Many machines have no engine, and the SDK takes a sixth of a start: it
        is loaded once the socket is there."""
        scheme, _, path = self.url.partition("://")
        if scheme == "unix" and self._connected is None:
            try:
                Path(path).stat()
            except OSError as error:
                raise self._down(_cause(error)) from error
        import requests
        import urllib3
        from docker.errors import APIError, DockerException

        try:
            yield self._api()
        except APIError as error:
            status = error.status_code or 500
            raise EngineRefused(status, str(error.explanation or error)) from error
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            if "Read timed out" in str(error):  # wrapped in several exception types
                message = f"the container engine at {self.url} does not answer in time"
                raise EngineTimeout(message, "timed out") from error
            raise self._down(_cause(error)) from error
        except DockerException as error:
            raise self._down(_cause(error)) from error

    @contextmanager
    def _call_ignoring_gone(self) -> Iterator["docker.APIClient"]:
        try:
            with self._call() as api:
                yield api
        except EngineRefused as refused:
            # 304: already stopped; 404: removed; 409: not running, or being removed.
            if refused.status not in (304, 404, 409):
                raise

    def _api(self) -> "docker.APIClient":
        """The SDK's client, connected by the first successful call: the agent may start before the engine."""
        import docker

        with self._lock:
            if self._connected is None:
                self._connected = docker.APIClient(
                    base_url=self.url, version="auto", timeout=int(self._timeout_s), max_pool_size=_POOL
                )
            return self._connected

    @staticmethod
    def _url(api: "docker.APIClient", path: str) -> str:
        return f"{api.base_url}/v{api.api_version}{path}"


def _find_dockerd() -> int:
    """The pid of this machine's dockerd; 0 if none is visible."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "comm").read_text() == "dockerd\n":
                return int(entry.name)
        except OSError:
            continue  # it has ended
    return 0


def _listener(path: str) -> int:
    """The pid of the listener on a unix socket. 1 (systemd), or 0 inside a container, is not the engine."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CALL_S)
        probe.connect(path)
        pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def _check(response: "requests.Response") -> None:
    """Raise EngineRefused for an error status. (The SDK's own methods do so themselves.)"""
    if response.status_code < 400:
        return
    try:
        message = str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        message = response.text
    response.close()
    raise EngineRefused(response.status_code, message)


def _credentials(repository: str) -> dict[str, str]:
    """The registry's authentication header, from the current Docker configuration."""
    from docker import auth
    from docker.errors import DockerException

    registry, _ = auth.resolve_repository_name(repository)
    try:
        config = auth.resolve_authconfig(auth.load_config(), registry)
    except DockerException as error:
        message = f"unauthorized: the credentials for {registry} cannot be read ({_cause(error)})"
        raise EngineRefused(401, message) from error
    return {"X-Registry-Auth": auth.encode_header(config).decode("ascii")} if config else {}


def _cause(error: BaseException) -> str:
    """The message of the innermost exception."""
    while True:
        inner = (
            error.__cause__
            or error.__context__
            or next((argument for argument in error.args if isinstance(argument, BaseException)), None)
        )
        if inner is None or inner is error:
            return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(
                error
            ).__name__
        error = inner
