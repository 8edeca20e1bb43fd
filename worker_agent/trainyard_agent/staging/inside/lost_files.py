"""Warning at the end of a package about the files in the directory it started in, which is removed with its run.

Nothing is said of a program that a signal kills, and by a Python before 3.10.
"""

import os
import sys

_SHOWN = 5


def watch() -> None:
    """Watch the current directory if this process is the job's program: `python -m MODULE`."""
    words = list(getattr(sys, "orig_argv", ()))
    job = os.environ.get("CLOUD_ML_JOB", "")
    if words[1:2] != ["-m"] or not job:
        return
    import atexit
    import json
    from pathlib import Path

    if words[2:3] == [json.loads(job).get("python_module")]:
        directory = Path.cwd()
        before = frozenset(path.name for path in directory.iterdir())
        process = os.getpid()

        def warn() -> None:
            if os.getpid() != process:  # one that the program has forked
                return
            try:
                _warn({path.name for path in directory.iterdir()} - before)
            except (OSError, ValueError):  # the directory is gone, or stdout is closed
                return

        atexit.register(warn)


def _warn(new: "set[str]") -> None:
    """Name what is new, but for what is hidden. It goes to stdout: a failure's own words are looked for on stderr."""
    names = sorted(name for name in new if not name.startswith((".", "__")))
    if names:
        shown = ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
        text = (
            f"WARNING: trainyard: the working directory is removed with {shown}: files in it are not kept. Write them "
            "to the directory of --job-dir, which is TRAINYARD_JOB_DIR in the environment."
        )
        print("".join(c if c.isprintable() else "?" for c in text), flush=True)
