"""Checks, before an agent offers processes to many users, that programs can run as users of jobs, and reach what they
need and nothing else. Asked of the machine, as such a user: only the kernel knows all its rules."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from trainyard_agent.host import unix_users
from trainyard_agent.runtimes import as_user

_PROGRAM = """
import json, os, sys
print(json.dumps([path for path in sys.argv[1:] if os.access(path, os.R_OK)]))
"""
_TIMEOUT_S = 60.0
_HARD_LINKS = Path("/proc/sys/fs/protected_hardlinks")


def problem(user: int, python: str, state_dir: Path, needed: Sequence[Path], secret: Sequence[Path]) -> str:
    """The reason why no program can run as `user` with the interpreter `python`, or should not; "" if it can. It must
    be able to enter `state_dir` and to read what is `needed`, and unable to read what is `secret`."""
    if _HARD_LINKS.read_text("ascii").strip() == "0":
        return f"the kernel lets everybody link to files of others: set {_HARD_LINKS} to 1"
    if closed := unix_users.closed_to(state_dir):
        return f"users of jobs may not enter {closed}: choose another --state-dir, or chmod o+x"
    paths = [str(path) for path in (*needed, *secret)]
    command = as_user.command(user, 1 << 16, [python, "-I", "-S", "-c", _PROGRAM, *paths])
    try:
        done = subprocess.run(command, cwd="/", env={}, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"{python} did not start as a user of jobs within {_TIMEOUT_S:g} s"
    if done.returncode:
        return _why_it_fails(Path(python), done.stderr)
    readable = set(json.loads(done.stdout))
    if lacking := [str(path) for path in needed if str(path) not in readable]:
        return f"users of jobs cannot read {lacking[0]}"
    if open_to_all := [str(path) for path in secret if str(path) in readable]:
        return f"users of jobs could read {open_to_all[0]}: chmod 0600"
    return ""


def _why_it_fails(python: Path, error: str) -> str:
    closed = unix_users.closed_to(python)
    if closed is not None:
        return f"users of jobs cannot reach {python}, because they may not enter {closed}: choose another --python"
    return (error.strip().splitlines() or [f"{python} fails as a user of jobs"])[-1]
