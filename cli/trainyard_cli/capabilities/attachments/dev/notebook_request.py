"""Request for JupyterLab to the waiting program of a `jobs dev` job: `python notebook_request.py DIRECTORY`.

It prints `{"port": N, "token": TEXT}` once JupyterLab answers, or `{"error": SENTENCE}`. It runs in the replica, and
uses only the standard library, of Python 3.8 or later.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_START_S = 120.0
_PAUSE_S = 0.2
_NOT_INSTALLED = (
    "JupyterLab is not installed in this job. A job that is submitted by `jobs dev --notebook` has it; in an image of "
    "your own, install jupyterlab."
)


def request(directory: Path) -> dict[str, Any]:
    """Start JupyterLab unless it runs. Returns its port and its token."""
    found = _running(directory)
    if found is not None and _listens(found["port"]):
        return found
    done = subprocess.run([sys.executable, "-c", "import jupyterlab"], capture_output=True, check=False)
    if done.returncode:
        return {"error": _NOT_INSTALLED}
    if found is not None:
        (directory / "notebook.json").unlink()
    (directory / "notebook.wanted").touch()
    give_up_at = time.monotonic() + _START_S
    while time.monotonic() < give_up_at:
        time.sleep(_PAUSE_S)
        found = _running(directory)
        if found is not None and _listens(found["port"]):
            return found
        if found is not None and not _is_alive(found["pid"]):
            return {"error": f"JupyterLab has ended: {_last_line(directory / 'notebook.log')}"}
    return {"error": f"JupyterLab does not answer after {_START_S:.0f} s. Its log: {directory / 'notebook.log'}"}


def _running(directory: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((directory / "notebook.json").read_bytes())
    except FileNotFoundError:
        return None
    return found


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing.")


if __name__ == "__main__":
    print(json.dumps(request(Path(sys.argv[1]))))
