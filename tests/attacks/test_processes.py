"""Hostile jobs as processes of an agent that is root: each run has a user of its own, who gets nowhere.

The real server and agent. One job is the victim. The other brings a package whose setup.py attacks when it is
installed, and which attacks again when it runs; both leave behind what they can.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from attacks import hostile
from attacks.service import AttackedService, package
from trainyard_agent.host import unix_users

FIRST = 300_000 + os.getpid() % 1000 * 100
"""Of the user ids, so that tests at the same time share none."""

SECRETS = [{"name": "KEY"}, {"name": "KEY", "file": "/run/key"}]
VICTIM = """
import os, time
assert open(os.environ["KEY_FILE"]).read() == os.environ["KEY"]
assert not os.access("/dev/stdout", os.R_OK)
print("up", file=open("/dev/stdout", "w"), flush=True)
time.sleep(1000)
"""
LEAVES = """
import os, pathlib, shutil, sys, time
where = pathlib.Path(sys.argv[1])
shutil.copy("/bin/sh", where / "shell")
(where / "shell").chmod(0o6755)
pathlib.Path(f"/dev/shm/hostile-{os.getuid()}").write_text("left")
pathlib.Path(f"/tmp/hostile-{os.getuid()}").mkdir(exist_ok=True)
if os.fork() == 0:  # a process that nothing of ours names any more
    os.setsid()
    os.closerange(0, 3)
    if os.fork() == 0:
        os.execve("/bin/sleep", ["/bin/sleep", "1000"], {})
    os._exit(0)
os.wait()
"""
ATTACK = f"""
import contextlib, json, os, pathlib, subprocess, sys
import hostile
targets = json.loads(TARGETS)
site = os.path.dirname(hostile.__file__)
def attack(name, where, **own):
    with open(os.path.join(targets["job_dir"], name), "w") as file, contextlib.redirect_stdout(file):
        hostile.main(json.dumps({{**targets, **own}}))
    subprocess.run([sys.executable, "-c", {LEAVES!r}, where], check=True)
"""
RUNS = (
    ATTACK
    + """
attack("run", targets["job_dir"], own_log=os.path.abspath("../log.jsonl"), environment=hostile.__file__)
"""
)
INSTALLS = (
    ATTACK
    + """
attack("install", os.environ["TMPDIR"])
from setuptools import setup
setup(name="hostile", version="1", py_modules=["hostile", "attacks"])
"""
)


def _python() -> str:
    """An interpreter that every user can start; "" without one."""
    for python in (sys.executable, "/usr/bin/python3"):
        if unix_users.closed_to(Path(python).resolve()) is None and Path(python).exists():
            return python
    return ""


pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give runs users of their own"),
    pytest.mark.skipif(not _python(), reason="no other user can start a Python here"),
]


@pytest.fixture
def service() -> Iterator[AttackedService]:
    with open_directory() as root, ExitStack() as stack:
        (root / "modules").mkdir(mode=0o755)
        (root / "modules" / "victim.py").write_text(VICTIM)
        agent = ["--python", _python(), "--runtime", "process", "--job-uids", f"{FIRST}-{FIRST + 99}"]
        agent += ["--memory-gb", "16", "--replica-env", f"PYTHONPATH={root / 'modules'}"]
        # With a strict umask, as operators have it: what users of jobs need must be theirs to read all the same.
        service = AttackedService(root, stack, ("alice", "mallory"), agent, umask=0o077)
        service.start_agent()
        yield service


def users(service: AttackedService) -> dict[str, int]:
    """The users of runs, by run."""
    files = (service.state / "users").glob("*.json")
    return {path.stem: json.loads(path.read_text())["user"] for path in files}


@contextmanager
def open_directory() -> Iterator[Path]:
    """Pytest's own directories are closed to other users."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o711)
        yield root


def test_hostile_jobs_reach_nothing_and_leave_nothing(service: AttackedService) -> None:
    service.set_secret("KEY", "the victim's key")
    service.submit("alice", "victim", pythonModule="victim", secrets=SECRETS)
    service.until(lambda: list(service.state.glob("runs/*/*/started.json")))
    (started,) = service.state.glob("runs/*/*/started.json")
    victim = json.loads(started.read_text())["pid"]
    assert (started.parent / "secrets" / "KEY" / "key").read_text() == "the victim's key"
    (victims_user,) = users(service).values()
    job_dir = service.root / "jobs" / "p" / "mallory" / "hostile"
    targets = {
        "token": service.root / "agent-token",
        "state": service.state,
        "other": started.parent,
        "other_secret": started.parent / "secrets" / "KEY" / "key",
        "other_pid": victim,
        "other_job_dir": service.root / "jobs" / "p" / "alice" / "victim",
        "job_dir": job_dir,
        "server": service.url,
        "engine": "/var/run/docker.sock",
    }
    targets_json = json.dumps({name: str(target) for name, target in targets.items()})
    source = Path(hostile.__file__).read_text()
    texts = {
        "setup": INSTALLS.replace("TARGETS", repr(targets_json)),
        "attacks": RUNS.replace("TARGETS", repr(targets_json)),
        "hostile": source,
    }

    service.submit("mallory", "hostile", [package("hostile", **texts)], pythonModule="attacks")

    ended = service.end("mallory", "hostile")
    assert ended["state"] == "SUCCEEDED", ended["errorMessage"]
    for name in ("install", "run"):
        *rows, last = map(json.loads, (job_dir / name).read_text().splitlines())
        assert [row for row in rows if not row["held"]] == []
        of_replicas = {"swap_own_log", "write_own_log", "change_environment"} if name == "install" else set()
        assert [row["attack"] for row in rows] == [name for name in hostile.ATTACKS if name not in of_replicas]
        facts = last["facts"]
        (user,) = set(facts["Uid"].split()) | set(facts["Gid"].split())
        assert FIRST <= int(user) < FIRST + 100
        assert int(user) != victims_user
        assert (facts["Groups"], int(facts["CapPrm"], 16), facts["NoNewPrivs"]) == ("", 0, "1")

    service.until(lambda: list(users(service).values()) == [victims_user])
    assert unix_users.processes(int(user)) == []
    assert not list(Path("/dev/shm").glob(f"hostile-{user}")) + list(Path("/tmp").glob(f"hostile-{user}"))
    left = (job_dir / "shell").stat()
    assert (left.st_uid, left.st_mode & 0o6000) == (0, 0)
    assert unix_users.processes(victims_user) == [victim]

    service.kill_agent()
    service.start_agent()
    service.until(lambda: service.job("alice", "victim")["state"] == "RUNNING")
    assert list(users(service).values()) == [victims_user]
    service.stop_all()
    assert unix_users.processes(victims_user) == []


def test_agent_says_at_its_start_what_users_of_jobs_cannot_reach(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    python = closed / "python"
    python.symlink_to("/usr/bin/env")
    (closed / "token").write_text("t")
    (closed / "token").chmod(0o600)
    with open_directory() as root:
        words = ["--server", "http://127.0.0.1:1", "--token-file", str(closed / "token")]
        words += ["--state-dir", str(root / "agent"), "--python", str(python), "--runtime", "process"]
        words += ["--job-uids", f"{FIRST}-{FIRST}"]
        command = [sys.executable, "-m", "trainyard_agent", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1
    assert f"users of jobs cannot reach {python}, because they may not enter /" in done.stderr
