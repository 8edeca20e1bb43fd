"""Real container engines for the tests, with a base image out of Debian's packages.

`found()` is the one that the tests share: this machine's, or else one that they start. `OwnEngine` is for tests
that stop it, kill it and start it again.
"""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import docker
import psutil

from beds import debian
from beds.waiting import until_up

BASE_IMAGE = "trainyard-test-base"

_TOOLS = ("dockerd", "containerd", "docker-init", "iptables", "ip", "nsenter", "setpriv", "debootstrap")
_POOL = "10.211.0.0/16"  # networks of 254 addresses: an engine has room for no more than 31 of its default ones
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE_S = 60.0


class NoEngine(Exception):
    """The message says what is missing."""


class Engine:
    """An engine that answers at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client: docker.DockerClient | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {"DOCKER_HOST": self.url}

    @property
    def base_image(self) -> str:
        """Debian with python3, venv, pip, setuptools and certificates; made when it is first asked for."""
        self.provide_base_image()
        return BASE_IMAGE

    def provide_base_image(self) -> None:
        """Raises NoEngine where it cannot be made: an engine without it is of no use to a test."""
        if self.client().images.list(BASE_IMAGE):
            return
        try:
            with debian.base_tar() as tar:
                self._import(tar)
        except (AssertionError, OSError, subprocess.CalledProcessError) as error:
            raise NoEngine(f"no base image can be made on this machine: {error}") from error

    def client(self) -> docker.DockerClient:
        if self._client is None:
            self._client = docker.DockerClient(base_url=self.url, timeout=120)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def remaining(self, label: str = "") -> list[str]:
        """Every container, network and volume that carries the label (`name` or `name=value`); "": every one."""
        client = self.client()
        carries: dict[str, str | list[str] | bool] = {"label": label} if label else {}
        containers = client.containers.list(all=True, filters=carries, ignore_removed=True)
        networks = client.networks.list(filters={**carries, "type": "custom"})
        return [
            *(f"container {found.name} ({found.status})" for found in containers),
            *(f"network {found.name}" for found in networks),
            *(f"volume {found.name}" for found in client.volumes.list(filters=carries)),
        ]

    def build(self, name: str, dockerfile: str, files: Mapping[str, bytes] | None = None) -> str:
        """Build an image out of a Dockerfile and the files beside it; its name."""
        context = io.BytesIO()
        with tarfile.open(fileobj=context, mode="w") as tar:
            for path, content in {"Dockerfile": dockerfile.encode(), **(files or {})}.items():
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(content), 0o755
                tar.addfile(entry, io.BytesIO(content))
        context.seek(0)
        self.client().images.build(fileobj=context, custom_context=True, tag=name, rm=True, forcerm=True)
        return name

    def _import(self, tar: BinaryIO) -> None:
        api = self.client().api
        made = api.post(
            f"{api.base_url}/v{api.api_version}/images/create",
            params={"fromSrc": "-", "repo": BASE_IMAGE, "tag": "latest", "changes": f"ENV PATH={_PATH}"},
            data=tar,
        )
        made.raise_for_status()


class OwnEngine(Engine):
    """A dockerd and a containerd of the tests, as Debian starts them. All that they keep lies in `root`.

    With `isolated` they have a network of their own as well, or the namespace `inside`: two engines on one host take
    each other's bridge and rules away. Containers of one that is alone reach each other and nothing else. And `root`
    lies in memory: most of the life of such an engine would be writing the base image to a disk and removing it again.
    """

    def __init__(self, root: Path, isolated: bool, inside: str = "") -> None:
        super().__init__(f"unix://{root}/docker.sock")
        self._root = root
        self._network = inside or (root.name if isolated else "")
        self._makes_network = not inside
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._came_up = False

    def start(self, live_restore: bool = False, log_opts: Mapping[str, str] | None = None) -> None:
        """Raises NoEngine, with its last words, if it does not answer in time.

        To be called in the main thread: the daemons end with the thread that started them, so that a test
        session that is killed leaves none behind.
        """
        if self._network and not self._mounts():
            _done("mount", "-t", "tmpfs", "-o", "mode=711", "tmpfs", str(self._root))
            if self._makes_network:
                _done("ip", "netns", "add", self._network)
                _done("ip", "-n", self._network, "link", "set", "lo", "up")
        containerd = f"{self._root}/containerd.sock"
        if "containerd" not in self._daemons:
            config = self._root / "containerd.toml"
            config.write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
            directories = ("--root", f"{self._root}/containerd", "--state", f"{self._root}/state")
            self._spawn("containerd", "--config", str(config), "--address", containerd, *directories)
            until_up(lambda: Path(containerd).exists(), lambda: self._failure("containerd"), NoEngine)
        command = [
            *("dockerd", "--data-root", f"{self._root}/data", "--exec-root", f"{self._root}/exec"),
            *("--pidfile", f"{self._root}/pid", "--host", self.url, "--containerd", containerd),
            *("--default-address-pool", f"base={_POOL},size=24"),
            *("--max-download-attempts", "1"),  # or it waits for 50 s before a broken pull has failed
        ]
        if live_restore:
            command.append("--live-restore")
        for name, value in (log_opts or {}).items():
            command += ["--log-opt", f"{name}={value}"]
        self._spawn(*command)
        until_up(lambda: _answers(self.url), lambda: self._failure("dockerd"), NoEngine)
        self._came_up = True

    def stop(self) -> None:
        """SIGTERM: without live-restore, its containers end too."""
        self._end("dockerd", signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL of dockerd: containerd and the containers go on."""
        self._end("dockerd", signal.SIGKILL)

    def restart(self, live_restore: bool = False, log_opts: Mapping[str, str] | None = None) -> None:
        self.stop()
        self.start(live_restore, log_opts)

    def bridge_address(self) -> str:
        """The host's address on the default bridge."""
        there = ("-n", self._network) if self._network else ()
        shown = subprocess.check_output(["ip", *there, "-j", "-4", "address", "show", "docker0"])
        return str(json.loads(shown)[0]["addr_info"][0]["local"])

    def remove(self) -> None:
        """Nothing of it is left: no container, process, mount, network or file. It need not have come up."""
        try:
            if self._came_up:
                self._empty()
        finally:
            for daemon in reversed(list(self._daemons)):
                self._end(daemon, signal.SIGTERM)
            for process in self._processes():  # what a failed test left
                process.kill()
            psutil.wait_procs(self._processes(), timeout=_PATIENCE_S)
            for mount in self._mounts():
                _done("umount", "--lazy", mount)
            if self._network and self._makes_network and Path("/run/netns", self._network).exists():
                _done("ip", "netns", "delete", self._network)
            shutil.rmtree(self._root)

    def _empty(self) -> None:
        """Only an engine ends its containers: their processes say nothing of whose they are."""
        if not _answers(self.url):
            self.start()
        for container in self.client().containers.list(all=True, ignore_removed=True):
            container.remove(force=True, v=True)
        for network in self.client().networks.list(filters={"type": "custom"}):
            network.remove()

    def _spawn(self, daemon: str, *arguments: str) -> None:
        enter = ["nsenter", f"--net=/run/netns/{self._network}"] if self._network else []
        with (self._root / f"{daemon}.log").open("ab") as log:
            self._daemons[daemon] = subprocess.Popen(
                [*enter, "setpriv", "--pdeathsig", "TERM", daemon, *arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _failure(self, daemon: str) -> str:
        if self._daemons[daemon].poll() is None:
            return ""
        log = (self._root / f"{daemon}.log").read_text(errors="replace").splitlines()
        last_words = [line.strip() for line in log if not line.startswith("time=")] or log[-1:]
        return f"{daemon} does not come up on this machine: {' '.join(last_words[-3:])}"

    def _end(self, daemon: str, how: signal.Signals) -> None:
        self.close()
        process = self._daemons.pop(daemon)
        process.send_signal(how)
        process.wait(_PATIENCE_S)

    def _mounts(self) -> list[str]:
        """The innermost first."""
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        return sorted((m for m in mounts if Path(m).is_relative_to(self._root)), reverse=True)

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if any(word.startswith(f"{self._root}/") for word in words):
                found.append(process)
        return found


@contextmanager
def found() -> Iterator[Engine]:
    """The engine that tests share. Raises NoEngine."""
    url = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if _answers(url):
        engine = Engine(url)
        try:
            yield engine
        finally:
            engine.close()
    else:
        with own(isolated=False) as engine:
            yield engine
            left = engine.remaining()
            assert not left, f"the tests left in the engine that they share: {left}"


@contextmanager
def own(isolated: bool = True, inside: str = "") -> Iterator[OwnEngine]:
    """A new engine, in a network namespace of its own or `inside` that one. Raises NoEngine."""
    missing = [tool for tool in _TOOLS if not shutil.which(tool)]
    if os.geteuid() != 0 or missing:
        who = "this is root" if os.geteuid() == 0 else "this is not root"
        raise NoEngine(
            f"a container engine of the tests' own takes root and {', '.join(_TOOLS)}; "
            f"{who}, and missing are: {', '.join(missing) or 'none'}"
        )
    root = Path(tempfile.mkdtemp(prefix="ty-", dir="/tmp"))  # short: paths of sockets are limited
    engine = OwnEngine(root, isolated, inside)
    try:
        engine.start()
        yield engine
    finally:
        engine.remove()


def _done(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoEngine(f"`{' '.join(command)}` fails on this machine: {done.stderr.strip()}")


def _answers(url: str) -> bool:
    scheme, _, path = url.partition("://")
    if scheme != "unix":
        raise NoEngine(f"DOCKER_HOST={url}: the tests take an engine on this machine, at unix://...")
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(10)
            probe.connect(path)
            probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in probe.recv(100)
    except OSError:
        return False
