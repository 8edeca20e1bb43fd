"""A machine of tests that an operator reaches over ssh: a real sshd in a network and mount namespace. Its systemctl is
a stand-in that starts what a unit says.
"""

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from beds.installed.installed import requirements, top_levels
from beds.programs import Programs
from beds.waiting import until
from e2e.machines import Machine

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
esac
"""
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


def start_sshd(machine: Machine) -> None:
    if shutil.which("sshd", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("takes sshd")
    home, here = machine.programs.home, machine.programs
    for name in ("bin", "packages", *(path.strip("/") for path in OURS)):
        (home / name).mkdir(parents=True)
    systemctl = home / "bin" / "systemctl"
    systemctl.write_text(SYSTEMCTL.replace("{home}", str(home)))
    systemctl.chmod(0o755)
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
