"""`trainyard agents add USER@HOST` over a real sshd: a machine without anything of ours runs a job, is updated, and is
as before once it is removed. The machine is a network and mount namespace; its systemctl is a stand-in that starts
what the unit says.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from beds.certificates import Authority
from beds.installed.installed import requirements, top_levels
from beds.waiting import until
from e2e.machines import Machine, machines
from e2e.test_wheel import wheel  # noqa: F401 - a fixture

pytestmark = pytest.mark.e2e

SYSTEMCTL = """#!/bin/sh
unit=/etc/systemd/system/trainyard-agent.service
stop() { [ ! -e {home}/pid ] || kill "$(cat {home}/pid)" 2>/dev/null; rm -f {home}/pid; }
echo "$*" >> {home}/systemctl
case $1 in
    restart)
        stop
        eval "setsid $(sed -n 's/^ExecStart=//p' $unit) >> {home}/agent.log 2>&1 < /dev/null &"
        echo $! > {home}/pid;;
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


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """A server with HTTPS, and a machine with an sshd that lets its operator in."""
    if shutil.which("sshd", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("takes sshd")
    with machines(tmp_path, ["server", "box"]) as (server, box):
        start_sshd(box)
        here = server.programs
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", here.home / "key"], check=True)
        (box.programs.home / "keys").write_text((here.home / "key.pub").read_text())
        ssh = here.home / "bin" / "ssh"  # the real one looks for its files in the home of the account
        ssh.parent.mkdir()
        options = f"-i {here.home}/key -o UserKnownHostsFile={here.home}/known -o StrictHostKeyChecking=accept-new"
        ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F /dev/null {options} -o BatchMode=yes "$@"\n')
        ssh.chmod(0o755)
        here.environment["PATH"] = f"{ssh.parent}:{here.environment['PATH']}"
        authority = Authority(here.home)
        issued, url = authority.issue(server.address), f"https://{server.address}:8470"
        tls = ("--tls-cert", str(issued.certificate), "--tls-key", str(issued.key))
        here.server(*tls, roles={"operator": "admin:you"}, url=url)
        token = ("--token-file", str(here.token("operator")), "--ca-file", str(authority.ca_file))
        here.ok("trainyard", "login", url, *token)
        yield server, box


def test_machine_gets_an_agent_runs_a_job_is_updated_and_is_as_before_when_it_is_removed(
    site: tuple[Machine, Machine],
    wheel: Path,  # noqa: F811
) -> None:
    server, box = site
    here, host = server.programs, f"root@{box.address}"
    add = ("trainyard", "agents", "add", host, "--name", "box", "--wheel", str(wheel))
    options = ("--runtime", "process", "--one-user", "--cpus", "0")
    added = here.done(*add, *options)
    assert f"{host}: installing the agent as root..." in added.stderr
    assert "box is alive: 1 vCPU, " in added.stderr
    assert "; process." in added.stderr
    assert not added.stdout, "the token is shown to nobody"
    (here.home / "hello.py").write_text('print("hello from the box")\n')
    done = here.done("trainyard", "jobs", "submit", "training", "j", "--package-path", "hello.py", "--stream-logs")
    assert "hello from the box" in done.stderr + done.stdout

    updated = here.done(*add, *options)
    assert f"{host}: updating the agent as root..." in updated.stderr
    assert here.ok("trainyard", "agents", "list", "--format", "value(name,state)").split() == ["box", "alive"]

    removed = here.done("trainyard", "agents", "remove", host)
    assert f"{host}: the agent is stopped and removed." in removed.stderr
    assert here.ok("trainyard", "agents", "list", "--format", "value(name)").split() == []
    left = [path for place in OURS for path in (box.programs.home / place.strip("/")).iterdir()]
    assert left == []
    again = here.run("trainyard", "agents", "remove", host)
    assert (again.returncode, f"There is no agent of root on {host}." in again.stderr) == (1, True)


def test_machine_that_ssh_does_not_reach_is_said_with_its_words(site: tuple[Machine, Machine]) -> None:
    server, box = site
    (box.programs.home / "keys").write_text("")
    refused = server.programs.run("trainyard", "agents", "add", f"root@{box.address}")
    words = f"ssh does not get to root@{box.address}: root@{box.address}: Permission denied (publickey)."
    assert (refused.returncode, words in refused.stderr) == (1, True), refused.stderr
