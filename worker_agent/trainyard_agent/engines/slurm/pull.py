"""Pulls the images of a run on the first node of its job: `python -I -S pull.py RUN_DIR PROGRAM PATIENCE_S`, in the
batch step.

Each becomes one file on the shared file system, which all nodes read. What a registry has sent stays in a cache, so
that the same image is fetched once. A registry that is away is waited for. It needs the standard library alone.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # started by its path, without site-packages
    sys.path.append(__file__.rpartition("/trainyard_agent/")[0])

from trainyard_agent.engines.slurm import containers
from trainyard_agent.host.files import write_json
from trainyard_agent.installer.patience import Patience
from trainyard_agent.staging import image_errors

_CACHE = "image-cache"
_LONGEST = 2000
_MARKS = ("FATAL:", "ERROR:")


class PullFailed(Exception):
    """The message has the program's words."""


def main(run: str, program: str, patience_s: float) -> int:
    images = json.loads(Path(run, containers.LIST).read_text(encoding="utf-8"))["images"]
    os.environ.setdefault(f"{Path(program).name.upper()}_CACHEDIR", str(Path(run).parent.parent / _CACHE))
    for number, image in enumerate(images):
        path = f"{run}/{containers.IMAGES}/{number}"
        try:
            command = [program, "--quiet", "pull", "--force", f"{path}.sif", f"docker://{image}"]
            _pull(run, command, Patience(patience_s))
            config = image_config(program, f"{path}.sif")
        except (OSError, PullFailed) as error:
            print(error, file=sys.stderr)
            failure = {"image": image, "words": str(error), "node": os.environ.get("SLURMD_NODENAME", "")}
            write_json(Path(f"{run}/{containers.FAILED}"), {**failure, "missing": isinstance(error, FileNotFoundError)})
            return 1
        write_json(Path(f"{path}.json"), config)
    return 0


def _pull(run: str, command: list[str], patience: Patience) -> None:
    """Raises PullFailed, OSError."""
    while True:
        try:
            _run(command)
        except PullFailed as error:
            pause_s = patience.pause_s() if image_errors.cause(str(error)) is image_errors.PullCause.AWAY else 0.0
            if not pause_s:
                raise
            print(f"The pull is tried again in {pause_s:.0f} s: {error}", file=sys.stderr, flush=True)
            write_json(Path(f"{run}/{containers.WAITS}"), {"words": str(error)})
            time.sleep(pause_s)
        else:
            return


def image_config(program: str, sif: str) -> dict[str, object]:
    """The configuration of an OCI image (Entrypoint, Cmd, WorkingDir), which the program keeps in the file. Raises
    PullFailed, OSError."""
    rows = [line.split("|") for line in _run([program, "sif", "list", sif]).splitlines()]
    for row in rows:
        if len(row) > 1 and row[-1].strip() == "JSON.Generic":
            config = json.loads(_run([program, "sif", "dump", row[0].strip(), sif]))
            if isinstance(config, dict) and "data" not in config:  # that of `inspect` has it
                return config
    return {}


def last_words(output: str) -> str:
    """The program's own error in its output, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        for mark in _MARKS:
            if mark in line:
                return line.partition(mark)[2].strip()[-_LONGEST:]
    return lines[-1][-_LONGEST:] if lines else "it said nothing"


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise PullFailed(last_words(done.stdout + done.stderr))
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
