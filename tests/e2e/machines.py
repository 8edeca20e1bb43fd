"""Machines as network namespaces on one network. One that an operator reaches over ssh has a real sshd in a mount
namespace too, and stand-ins for systemctl, which starts what a unit says, and journalctl.
"""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

from beds.installed.installed import requirements, top_levels
from beds.programs import Programs
from beds.waiting import until

_NETWORK = "198.18.77"
_numbers = itertools.count(1)

SYSTEMCTL = """#!/bin/sh
for unit; do :; done
stop() { [ ! -e {home}/$unit.pid ] || kill "$(cat {home}/$unit.pid)" 2>/dev/null; rm -f {home}/$unit.pid; }
echo "$*" >> {home}/systemctl
case $1 in
    restart)
        stop
        start=$(sed -n 's/^ExecStart=//p' /etc/systemd/system/$unit.service)
        eval "setsid $start >> {home}/$unit.log 2>&1 < /dev/null &"
        echo $! > {home}/$unit.pid;;
    disable) stop;;
    show) kill -0 "$(cat {home}/$unit.pid)" 2>/dev/null && echo 0 || echo 1;;
esac
"""
JOURNALCTL = "#!/bin/sh\nexec tail -n 1 {home}/trainyard-agent.log\n"
SSHD = """Port 22
HostKey {home}/host_key
AuthorizedKeysFile {home}/keys
StrictModes no
PermitRootLogin yes
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv PATH={home}/bin:{python}:/usr/bin:/bin PYTHONPATH={home}/packages PIP_NO_DEPS=1 PIP_NO_INDEX=1
"""
OURS = ("/opt", "/var/lib", "/etc/systemd/system")
"""What the installation writes to, which the machine has for itself."""


@dataclass(frozen=True)
class Machine:
    """A network namespace with an address, and what runs in it."""

    namespace: str
    address: str
    programs: Programs


@contextmanager
def machines(home: Path, names: Sequence[str]) -> Iterator[list[Machine]]:
    """Machines of these names, with directories of their own. The test is skipped for a user who cannot make them."""
    unique = f"{os.getpid()}-{next(_numbers)}"
    hub = f"ty-hub-{unique}"
    namespaces = [f"ty-{name}-{unique}" for name in names]
    made: list[str] = []
    try:
        for namespace in (hub, *namespaces):
            if subprocess.run(["ip", "netns", "add", namespace], capture_output=True, check=False).returncode:
                pytest.skip("takes a user who may make network namespaces")
            made.append(namespace)
        _ip("-n", hub, "link", "add", "switch", "type", "bridge")
        _ip("-n", hub, "link", "set", "switch", "up")
        with ExitStack() as stack:
            yield [
                stack.enter_context(_machine(home / name, hub, namespace, number))
                for number, (name, namespace) in enumerate(zip(names, namespaces, strict=True), start=1)
            ]
    finally:
        for namespace in made:
            _end_all(namespace)
            _ip("netns", "delete", namespace)


def _end_all(namespace: str) -> None:
    """Kill what still runs on a machine: after a failed test the agent that its systemctl has started."""
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True)
    for pid in found.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


@contextmanager
def _machine(home: Path, hub: str, namespace: str, number: int) -> Iterator[Machine]:
    device, port, address = "eth0", f"port{number}", f"{_NETWORK}.{number}"
    _ip("link", "add", port, "netns", hub, "type", "veth", "peer", device, "netns", namespace)
    _ip("-n", hub, "link", "set", port, "master", "switch", "up")
    _ip("-n", namespace, "address", "add", f"{address}/24", "dev", device)
    for link in (device, "lo"):
        _ip("-n", namespace, "link", "set", link, "up")
    with Programs(home, inside=("ip", "netns", "exec", namespace)).ending() as programs:
        yield Machine(namespace, address, programs)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def start_sshd(machine: Machine) -> None:
    if shutil.which("sshd", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("takes sshd")
    home, here = machine.programs.home, machine.programs
    for name in ("bin", "packages", *(path.strip("/") for path in OURS)):
        (home / name).mkdir(parents=True)
    for name, script in (("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)):
        (home / "bin" / name).write_text(script.replace("{home}", str(home)))
        (home / "bin" / name).chmod(0o755)
    for distribution in requirements(metadata.distribution("trainyard"), "agent"):
        for name, path in top_levels(distribution).items():
            if not (home / "packages" / name).exists():
                (home / "packages" / name).symlink_to(path)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / "host_key"], check=True)
    (home / "sshd_config").write_text(SSHD.format(home=home, python=Path(sys.executable).resolve().parent))
    mounts = "".join(f"mount --bind {home / path.strip('/')} {path} && " for path in OURS)
    program = f"mkdir -p /run/sshd && exec $(command -v sshd) -D -e -f {home}/sshd_config"
    run = f"mount --make-rprivate / && {mounts}{program}"
    here.environment["PATH"] += ":/usr/sbin"
    here.spawn("sshd", "sh", "-c", run)
    until(lambda: "Server listening" in here.log_of("sshd"), lambda: here.log_of("sshd"))


def let_in(operator: Programs, machine: Machine) -> None:
    """Let the operator's `ssh` into the machine, and nothing else. The test is skipped where there is no sshd."""
    if not machine.programs.log_of("sshd"):
        start_sshd(machine)
    key = operator.home / "key"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        ssh = operator.home / "bin" / "ssh"  # the real one looks for its files in the home of the account
        ssh.parent.mkdir()
        options = f"-i {key} -o UserKnownHostsFile={operator.home}/known -o StrictHostKeyChecking=accept-new"
        ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F /dev/null {options} -o BatchMode=yes "$@"\n')
        ssh.chmod(0o755)
        operator.environment["PATH"] = f"{ssh.parent}:{operator.environment['PATH']}"
    (machine.programs.home / "keys").write_text(key.with_suffix(".pub").read_text())
