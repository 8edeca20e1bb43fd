"""Start of a Python of a run's environment: what is to be done at its end. `begin` is quick, and loads nothing else."""

from __future__ import annotations

import atexit
import os
import sys

_BEGUN: list[bool] = []


def begin() -> None:
    """See to the end of this process, once: `site` reads the files of a virtual environment twice."""
    if _BEGUN:
        return
    _BEGUN.append(True)
    # The first that is registered is the last that is called.
    atexit.register(_explain)
    if list(getattr(sys, "orig_argv", ()))[1:2] == ["-m"]:
        __import__("_trainyard_lost_files").watch()


def _explain() -> None:
    """Print one line about the exception that ends the program, behind its traceback. Python notes it for post-mortem
    debuggers, whatever the program has made of `sys.excepthook`, which stays the program's own."""
    error = getattr(sys, "last_value", None)
    if error is None and not os.path.isdir("/gcs"):  # noqa: PTH112 - pathlib is slow to load
        return
    try:
        hints = __import__("_trainyard_hints")
        program = getattr(sys.modules.get("__main__"), "__file__", "")
        if text := hints.explain(error) or hints.of_directory(error, program):
            line = "".join(c if c.isprintable() else "?" for c in f"trainyard: {text}")
            os.write(2, f"{line}\n".encode("utf-8", "replace"))
    except Exception:  # noqa: BLE001 - the program has ended already: its own end is what counts
        return
