"""The container engine, as far as we use it: one method a question, over Docker's own SDK.

Every call blocks, may be made from several threads, and fails with one of two errors: EngineDown (nobody
answers, or not in time: whether it was done is unknown) or EngineRefused (it answered, with a status).
"""

import base64
import contextlib
import json
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.auth
import docker.errors
import docker.utils
import psutil
import requests
import urllib3

CALL_S = 60.0
"""How long the engine may take for an answer."""

STATS_S = 5.0
"""How long it may take to say what a container uses."""

_POOL = 64  # connections kept: a log that is followed holds one for as long as its container lives
_DIRECTORY, _SYMLINK, _EXECUTABLE = 1 << 31, 1 << 27, 0o111  # Go's file modes

_log = logging.getLogger(__name__)


class EngineError(Exception):
    """`message` is the engine's own, or says who did not answer."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class EngineDown(EngineError):
    """Nobody answers."""


class EngineSilent(EngineDown):
    """It took the question, and said nothing for too long."""


class EngineRefused(EngineError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Container:
    """One line of the engine's list. `state` is its word for it (`created`, `running`, `exited`, ...)."""

    id: str
    state: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class About:
    """What the engine says of itself."""

    name: str
    version: str
    cpus: int
    memory_bytes: int
    live_restore: bool


class LogStream:
    """What a container has written, as the engine's frames of bytes. To be closed by its reader."""

    def __init__(self, response: requests.Response) -> None:
        self._response = response
        self._interrupted = False

    def __iter__(self) -> Iterator[bytes]:
        """Blocks, as the engine sends them. Raises EngineDown when the connection breaks."""
        try:
            yield from self._response.iter_content(chunk_size=None)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            if not self._interrupted:
                raise EngineDown(f"the log stream was cut ({error})") from error

    def interrupt(self) -> None:
        """End a read that waits in another thread; then there is nothing more to read."""
        self._interrupted = True
        connection = getattr(self._response.raw, "connection", None)
        sock = getattr(connection, "sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):  # it ended by itself
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._response.close()


class Engine:
    """`url` as DOCKER_HOST has it; "": what the environment says, else this machine's socket."""

    def __init__(self, url: str = "") -> None:
        self.url = url or os.environ.get("DOCKER_HOST", "") or "unix:///var/run/docker.sock"
        self._lock = threading.Lock()
        self._connected: docker.APIClient | None = None

    def close(self) -> None:
        with self._lock:
            if self._connected is not None:
                self._connected.close()
            self._connected = None

    def about(self) -> About:
        with self._asked() as api:
            said = api.info()
        return About(
            name=said["Name"],
            version=said["ServerVersion"],
            cpus=int(said["NCPU"]),
            memory_bytes=int(said["MemTotal"]),
            live_restore=bool(said.get("LiveRestoreEnabled")),
        )

    def process(self) -> str:
        """Which process the engine is, as `pid:start time` of this boot; "" where it cannot be seen.

        What ended under one and is found by another was ended with it. Raises EngineDown.
        """
        scheme, _, path = self.url.partition("://")
        if scheme != "unix":
            return ""
        try:
            pid = _listener(path)
            if pid <= 1:
                pid = _seen_dockerd()
            return f"{pid}:{psutil.Process(pid).create_time()}" if pid else ""
        except OSError as error:
            raise EngineDown(
                f"the container engine at {self.url} does not answer ({error.strerror})"
            ) from error
        except psutil.Error:
            return ""

    # Containers.

    def containers(self, *labels: str) -> list[Container]:
        """All that carry these labels (`name=value`), whatever their state."""
        with self._asked() as api:
            found = api.containers(all=True, filters={"label": list(labels)})
        return [Container(entry["Id"], entry["State"], entry.get("Labels") or {}) for entry in found]

    def create(self, name: str, spec: Mapping[str, Any]) -> str:
        """The new container's id."""
        with self._asked() as api:
            created = api.create_container_from_config(dict(spec), name)
        return str(created["Id"])

    def inspect(self, container: str) -> dict[str, Any] | None:
        """All about it; None if there is no such container."""
        return self._found(lambda api: dict(api.inspect_container(container)))

    def stats(self, container: str) -> dict[str, Any] | None:
        """What it uses now, as the engine counts it; None if there is no such container."""
        with self._asked() as api:
            response = api.get(
                self._url(api, f"/containers/{container}/stats"),
                params={"stream": 0, "one-shot": 1},  # one-shot: not a second look a second later
                timeout=STATS_S,
            )
            if response.status_code == 404:
                return None
            _check(response)
            said: dict[str, Any] = response.json()
            return said

    def program_trouble(self, container: str, program: str, path: str, directory: str) -> str:
        """Why a created container could not execute `program`, looked up in `path`, or in its working
        `directory` if it is a relative path; "" if nothing speaks against it. With an init process in
        between, the engine itself would start it all the same."""
        if program.startswith("/"):
            candidates = [program]
        elif "/" in program:
            candidates = [f"{directory}/{program}"]
        else:
            candidates = [f"{place}/{program}" for place in path.split(":")]
        trouble = f"there is no program {program!r} in its image"
        for candidate in candidates:
            mode = self._mode(container, candidate)
            if mode is None:
                continue
            if mode & _SYMLINK:
                return ""  # where it leads is seen only inside
            if mode & _DIRECTORY:
                trouble = f"{candidate} is a directory in its image"
            elif not mode & _EXECUTABLE:
                trouble = f"{candidate} is not executable in its image"
            else:
                return ""
        return trouble

    def start(self, container: str) -> None:
        with self._asked() as api:
            api.start(container)

    def stop(self, container: str, grace_s: int) -> None:
        """SIGTERM, and SIGKILL after `grace_s`; blocks so long, and goes on if the caller dies. Gone or
        ended already: nothing."""
        with self._asked_about_what_may_be_gone() as api:
            response = api.post(
                self._url(api, f"/containers/{container}/stop"),
                params={"t": grace_s},
                timeout=grace_s + CALL_S,
            )
            _check(response)

    def kill(self, container: str) -> None:
        with self._asked_about_what_may_be_gone() as api:
            api.kill(container, "SIGKILL")

    def remove(self, container: str) -> None:
        """With its anonymous volumes, alive or not. Gone already, or going: nothing."""
        with self._asked_about_what_may_be_gone() as api:
            api.remove_container(container, force=True, v=True)

    def log(self, container: str, follow: bool) -> LogStream | None:
        """From its first byte, with times. None if there is no such container."""
        with self._asked() as api:
            response = api.get(
                self._url(api, f"/containers/{container}/logs"),
                params={"stdout": 1, "stderr": 1, "timestamps": 1, "follow": int(follow)},
                stream=True,
                timeout=(CALL_S, None if follow else CALL_S),
            )
            if response.status_code == 404:
                response.close()
                return None
            _check(response)
            return LogStream(response)

    # Networks.

    def create_network(self, spec: Mapping[str, Any]) -> str:
        """The new network's id."""
        with self._asked() as api:
            response = api.post(self._url(api, "/networks/create"), json=dict(spec), timeout=CALL_S)
            _check(response)
            return str(response.json()["Id"])

    def subnet(self, network: str) -> str:
        """Its IPv4 subnet, as `172.18.0.0/16`."""
        with self._asked() as api:
            said = api.inspect_network(network)
        return next(str(config["Subnet"]) for config in said["IPAM"]["Config"] if "." in config["Subnet"])

    def gateway(self) -> str:
        """The host's address on the engine's own bridge, or the engine's word for it; "" without a bridge."""
        said = self._found(lambda api: dict(api.inspect_network("bridge")))
        if said is None:
            return ""
        configs = (said.get("IPAM") or {}).get("Config") or [{}]
        return str(configs[0].get("Gateway") or "host-gateway")

    def networks(self, *labels: str) -> dict[str, Mapping[str, str]]:
        """The labels of all networks that carry these ones, by id."""
        with self._asked() as api:
            found = api.networks(filters={"label": list(labels)})
        return {entry["Id"]: entry.get("Labels") or {} for entry in found}

    def remove_network(self, network: str) -> None:
        """Gone already: nothing."""
        with self._asked_about_what_may_be_gone() as api:
            api.remove_network(network)

    def release_network(self, network: str) -> None:
        """Cut off whatever the engine counts as connected to it. That may be a container which is long gone: an engine
        with much to do can forget to let go of one, and then removes its network never (moby/moby#33156)."""
        said = self._found(lambda api: dict(api.inspect_network(network))) or {}
        for endpoint in (said.get("Containers") or {}).values():
            with self._asked_about_what_may_be_gone() as api:
                api.disconnect_container_from_network(endpoint["Name"], network, force=True)

    # Images.

    def image(self, name: str) -> dict[str, Any] | None:
        """The inspection of what is here under this name or id; None if nothing is."""
        return self._found(lambda api: dict(api.inspect_image(name)))

    def pull(self, name: str, progress: Callable[[Mapping[str, Any]], None], silence_s: float) -> None:
        """Pull an image, with the credentials of this user's Docker configuration.

        `progress` gets what the engine says on the way. Raises EngineRefused with the registry's own words,
        EngineSilent after `silence_s` without a word.
        """
        repository, tag = docker.utils.parse_repository_tag(name)
        with self._asked() as api:
            response = api.post(
                self._url(api, "/images/create"),
                params={"fromImage": repository, "tag": tag or "latest"},
                headers=_credentials(repository),
                stream=True,
                timeout=(CALL_S, silence_s),
            )
            with response:
                _check(response)
                for said in _json_stream(response):
                    if "error" in said:
                        detail = said.get("errorDetail") or {}
                        raise EngineRefused(int(detail.get("code") or 500), str(said["error"]))
                    progress(said)

    def _mode(self, container: str, path: str) -> int | None:
        with self._asked() as api:
            response = api.head(
                self._url(api, f"/containers/{container}/archive"), params={"path": path}, timeout=CALL_S
            )
        if response.status_code != 200:
            return None
        stat = json.loads(base64.b64decode(response.headers["X-Docker-Container-Path-Stat"]))
        return int(stat["mode"])

    def _found(self, ask: Callable[[docker.APIClient], dict[str, Any]]) -> dict[str, Any] | None:
        """What the engine says of a thing; None if there is no such thing."""
        try:
            with self._asked() as api:
                return ask(api)
        except EngineRefused as refused:
            if refused.status == 404:
                return None
            raise

    @contextmanager
    def _asked(self) -> Iterator[docker.APIClient]:
        """The one place where the SDK's errors become ours."""
        try:
            yield self._api()
        except docker.errors.APIError as error:
            status = error.status_code or 500
            raise EngineRefused(status, str(error.explanation or error)) from error
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            if "Read timed out" in str(error):  # wrapped in as many ways as there are places to wait in
                raise EngineSilent(f"the container engine at {self.url} does not answer in time") from error
            raise EngineDown(
                f"the container engine at {self.url} does not answer ({_cause(error)})"
            ) from error
        except docker.errors.DockerException as error:
            raise EngineDown(
                f"the container engine at {self.url} does not answer ({_cause(error)})"
            ) from error

    @contextmanager
    def _asked_about_what_may_be_gone(self) -> Iterator[docker.APIClient]:
        try:
            with self._asked() as api:
                yield api
        except EngineRefused as refused:
            # 304: ended already; 404: gone; 409: not running, or being removed by somebody else.
            if refused.status not in (304, 404, 409):
                raise

    def _api(self) -> docker.APIClient:
        """Connected on the first call that finds the engine there: an agent may be up before it."""
        with self._lock:
            if self._connected is None:
                self._connected = docker.APIClient(
                    base_url=self.url, version="auto", timeout=int(CALL_S), max_pool_size=_POOL
                )
            return self._connected

    @staticmethod
    def _url(api: docker.APIClient, path: str) -> str:
        return f"{api.base_url}/v{api.api_version}{path}"


def _seen_dockerd() -> int:
    """The process id of this machine's dockerd; 0 where none can be seen."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "comm").read_text() == "dockerd\n":
                return int(entry.name)
        except OSError:
            continue  # it ended while we looked
    return 0


def _listener(path: str) -> int:
    """The process that listens on a unix socket. systemd (1), or 0 from within a container: not the engine."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CALL_S)
        probe.connect(path)
        pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


def _check(response: requests.Response) -> None:
    """Raises EngineRefused for every answer that is no success. (The SDK does so in its own methods.)"""
    if response.status_code < 400:
        return
    try:
        message = str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        message = response.text
    response.close()
    raise EngineRefused(response.status_code, message)


def _credentials(repository: str) -> dict[str, str]:
    """The header that lets us in, from the Docker configuration as it is now: `docker login` counts at once."""
    registry, _ = docker.auth.resolve_repository_name(repository)
    try:
        found = docker.auth.resolve_authconfig(docker.auth.load_config(), registry)
    except docker.errors.DockerException as error:
        trouble = f"unauthorized: the credentials for {registry} cannot be read ({_cause(error)})"
        raise EngineRefused(401, trouble) from error
    return {"X-Registry-Auth": docker.auth.encode_header(found).decode("ascii")} if found else {}


def _json_stream(response: requests.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.strip():
            yield json.loads(line)


def _cause(error: BaseException) -> str:
    """The innermost reason, which alone is worth reading."""
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
