"""Machines of the bed, made of namespaces of Linux, and the home of a bed: all that marks it as one.

A machine has processes, mounts, a host name and a network of its own. The kernel kills its first process when the
thread that started it ends, and with that process all others of the machine; its mounts and its network go with them.
So nothing runs on after a session of tests that was killed. What may be left then is a directory in /tmp and empty
cgroups of the same name: `sweep()`, at the start of the next bed, removes those whose owner is gone.
"""

import fcntl
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

import psutil

from beds.kubernetes.build import NoKubernetes, Programs
from beds.waiting import until_up

_TOOLS = ("ip", "mount", "nsenter", "setpriv", "unshare")
_PREFIX, _PLACE = "ty-bed-", Path("/tmp")
_MARK = "TRAINYARD_BED"
"""Environment variable of all that a bed starts; its value is the bed's name."""
_PATIENCE_S, _PAUSE_S = 120.0, 0.05
_ALL = ("mount", "uts", "ipc", "net", "pid")
_WITH_US = ("setpriv", "--pdeathsig", "KILL")

_BOOT = """
hostname "$1"
if [ "$3" = first ]; then
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir /run/disks /run/programs
    mount --bind "$2" /run/programs
    own=
else
    own="/run/disks/$1/run"
    mkdir -p "$own"
    mount -t tmpfs -o mode=755 tmpfs "$own"
    mkdir "$own/programs"
    mount --bind /run/programs "$own/programs"
fi
for state in lib log; do
    mkdir -p "/run/disks/$1/$state"
    mount --bind "/run/disks/$1/$state" "/var/$state"
done
[ -z "$own" ] || mount --rbind "$own" /run
mkdir -p /run/sysctl
while read -r value name; do
    echo "$value" >"/run/sysctl/${name##*/}"
    mount --bind "/run/sysctl/${name##*/}" "/proc/sys/$name"
done <<VALUES
1 vm/overcommit_memory
10 kernel/panic
1 kernel/panic_on_oops
1000000 kernel/keys/root_maxkeys
25000000 kernel/keys/root_maxbytes
VALUES
: >/run/resolv.conf
[ ! -e /etc/resolv.conf ] || mount --bind /run/resolv.conf /etc/resolv.conf
mount --make-rshared /
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo up
exec /run/programs/bin/catatonit -P >/dev/null
"""
"""Like a machine of its own: nothing in /run, and in /var/lib and /var/log what it left there before. All that lies in
the memory of the first machine. No name server is known, so that a look-up fails at once. The values are those that a
kubelet would set for the whole host: here it finds them as it wants them, in files that only this machine sees."""


class Home:
    """Name, directory and cgroups of one bed, claimed by a lock on the directory for as long as its owner lives."""

    def __init__(self, directory: Path, lock: int) -> None:
        self.directory = directory
        self.name = directory.name
        self._lock = lock

    @classmethod
    def claim(cls) -> Self:
        while True:
            directory = _PLACE / f"{_PREFIX}{secrets.token_hex(4)}"
            directory.mkdir(mode=0o700)
            lock = os.open(directory, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if directory.exists():  # no sweep came in between
                return cls(directory, lock)
            os.close(lock)

    def cgroups(self) -> list[Path]:
        """One in each hierarchy of this machine."""
        return [hierarchy / self.name for hierarchy in _hierarchies()]

    def remove(self) -> None:
        try:
            remains = _end(self.name)
        finally:
            os.close(self._lock)
        assert not remains, f"the bed {self.name} leaves {remains}"


def sweep() -> None:
    """Remove what beds left whose owner is gone. Beds in use are not touched."""
    for directory in _PLACE.glob(f"{_PREFIX}{'[0-9a-f]' * 8}"):
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # removed meanwhile, or nothing of ours
            continue
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _end(directory.name)
        except BlockingIOError:  # in use
            continue
        finally:
            os.close(lock)


def remaining(name: str) -> list[str]:
    """Everything on this machine that is marked as of this bed: processes, cgroups, mounts, network links, files."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return [
        *(f"process {process.pid} {process.info['name']}" for process in _processes(name)),
        *(f"cgroup {group}" for group in _cgroups(name)),
        *(f"mount {m}" for m in Path("/proc/mounts").read_text().splitlines() if name in m),
        *(f"link {link}" for link in links.splitlines() if name in link),
        *([f"directory {_PLACE / name}"] if (_PLACE / name).exists() else []),
    ]


def _end(name: str) -> list[str]:
    """End and remove everything of a bed; what could not be removed."""
    for process in (found := _processes(name)):
        process.kill()
    psutil.wait_procs(found, timeout=_PATIENCE_S)
    deadline = time.monotonic() + _PATIENCE_S
    while groups := _cgroups(name):
        for group in reversed(groups):
            try:
                group.rmdir()
            except OSError:  # the kernel has not yet let go of the last process
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)
                break
    shutil.rmtree(_PLACE / name)
    return remaining(name)


def _processes(name: str) -> list[psutil.Process]:
    """Have their names in `info`, which are known even when they have ended."""
    every = psutil.process_iter(["name", "environ"])
    return [process for process in every if (process.info["environ"] or {}).get(_MARK) == name]


def _hierarchies() -> list[Path]:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [Path(words[1]) for words in mounts if words[2] in ("cgroup", "cgroup2")]


def _cgroups(name: str) -> list[Path]:
    """Outer ones first."""
    return [Path(group) for hierarchy in _hierarchies() for group, _, _ in os.walk(hierarchy / name)]


class Machine:
    """One machine; the first one has the disks of all others. To be used in a thread that lives as long as they do."""

    def __init__(
        self, name: str, home: Home, programs: Programs, first: "Machine | None" = None, zone: Path | None = None
    ) -> None:
        """`zone`: the file of its time zone; None: UTC."""
        missing = [tool for tool in _TOOLS if not shutil.which(tool)]
        if os.geteuid() != 0 or missing:
            who = "this is root" if os.geteuid() == 0 else "this is not root"
            raise NoKubernetes(
                f"a cluster of the tests' own needs root and {', '.join(_TOOLS)}; {who}, and missing are: "
                f"{', '.join(missing) or 'none'}"
            )
        self.name = name
        self._home, self._programs, self._disks = home, programs, first
        self._environment = {
            "PATH": f"/run/programs/bin:{os.environ['PATH']}",
            "HOME": "/run",
            _MARK: home.name,
            "TZ": f"{zone or 'UTC'}",
        }
        self._unshare: subprocess.Popen[bytes] | None = None
        self._first = 0
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def is_on(self) -> bool:
        return self._unshare is not None

    @property
    def network(self) -> str:
        """A path that names its network for whoever is outside."""
        return f"/proc/{self._first}/ns/net"

    def boot(self) -> None:
        """Raises NoKubernetes where this machine's kernel or user does not allow it."""
        where = self._disks._inside("mount") if self._disks else _WITH_US
        rank = "other" if self._disks else "first"
        command = [
            *(*where, "unshare", *(f"--{kind}" for kind in _ALL), "--fork", "--kill-child=KILL"),
            *("--mount-proc", "sh", "-euc", _BOOT, "sh", self.name, str(self._programs.directory), rank),
        ]
        with self._log("boot") as log:
            self._unshare = subprocess.Popen(
                command, env=self._environment, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert self._unshare.stdout is not None
        answer = self._unshare.stdout.readline()
        if answer != b"up\n":
            self._unshare.wait()
            self._unshare.stdout.close()
            self._unshare = None
            raise NoKubernetes(f"{self.name} cannot be made on this machine: {self.last_words('boot')}")
        (first,) = psutil.Process(self._unshare.pid).children()
        self._first = first.pid

    def off(self) -> None:
        """Pull the plug: every process is killed at once. Its disks stay as they are."""
        if self._unshare is None:
            return
        for process in psutil.Process(self._unshare.pid).children():
            process.kill()
        self._unshare.wait(_PATIENCE_S)
        assert self._unshare.stdout is not None
        self._unshare.stdout.close()
        for running in self._running.values():
            running.kill()  # what was started outside lives on otherwise
            running.wait(_PATIENCE_S)
        self._running.clear()
        self._unshare = None

    def start(self, program: str, *arguments: str) -> None:
        """In the background, with a log of its own."""
        with self._log(program) as log:
            self._running[program] = self.open(program, *arguments, stdout=log, stderr=log)

    def kill(self, program: str) -> None:
        """Kill a started program and wait for its end."""
        running = self._running.pop(program)
        for process in psutil.Process(running.pid).children():
            process.kill()
        running.wait(_PATIENCE_S)

    def open(
        self,
        program: str,
        *arguments: str,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.STDOUT,
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._inside(*_ALL), program, *arguments],
            env=self._environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )

    def start_outside(self, name: str, command: list[str], inside: tuple[str, ...] = (), fd: int = -1) -> None:
        """Start a program of the host on this machine's behalf; of its namespaces only those `inside`."""
        with self._log(name) as log:
            self._running[name] = subprocess.Popen(
                [*(self._inside(*inside) if inside else _WITH_US), *command],
                env={**os.environ, _MARK: self._home.name},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(fd,) if fd >= 0 else (),
                start_new_session=True,
            )

    def stop_outside(self, name: str) -> None:
        """Nothing, if it went with the machine."""
        if running := self._running.pop(name, None):
            running.kill()
            running.wait(_PATIENCE_S)

    def link(self, *arguments: str) -> None:
        """`ip` in this machine's network."""
        self._run([*self._inside("net"), "ip", *arguments])

    def run_inside(self, *command: str) -> None:
        self._run([*self._inside(*_ALL), *command])

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=self._environment
        )
        if done.returncode:
            raise NoKubernetes(f"`{' '.join(command)}` fails on this machine: {done.stderr.strip()}")

    def ended(self) -> str:
        """A program that should run and does not, with its last words, or ""."""
        for program, running in self._running.items():
            if running.poll() is not None:
                return f"{program} on {self.name} ended: {self.last_words(program)}"
        return ""

    def last_words(self, program: str, lines: int = 5) -> str:
        log = self._path(program)
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""

    def _inside(self, *namespaces: str) -> tuple[str, ...]:
        kinds = (f"--{namespace}" for namespace in namespaces)
        return (*_WITH_US, "nsenter", f"--target={self._first}", *kinds, "--")

    def _path(self, program: str) -> Path:
        return self._home.directory / f"{self.name}.{program}.log"

    def _log(self, program: str) -> IO[bytes]:
        return self._path(program).open("ab")


def wait_until(holds: Callable[[], bool], what: str, failure: Callable[[], str] = lambda: "") -> None:
    """Raises NoKubernetes with the failure, or with `what` was awaited."""
    until_up(holds, failure, NoKubernetes, what)
