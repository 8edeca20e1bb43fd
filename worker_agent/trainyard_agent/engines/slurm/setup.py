"""Setup of a job: lines of bash that run in the batch step, and what they change in the environment.

The script writes the variables before and after the lines into the run's directory, and each rank gives its program
what differs. It is imported by `rank.py`, so it needs the standard library alone.
"""

import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence

BEFORE, AFTER, FAILED = "setup-before.env", "setup-after.env", "setup-failed"
"""Files of the run's directory: the variables, and the number of the line that failed."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_SHELL = frozenset(("_", "SHLVL", "PWD", "OLDPWD", "HOME", "USER", "LOGNAME", "TMPDIR"))


def script(lines: Sequence[str], directory: str) -> str:
    """The part of the batch script with these lines, for bash. A line that fails ends the script. /etc/profile defines
    `module`, and may replace the PATH in which the commands of Slurm are."""
    written = ["PATH_OF_AGENT=$PATH", ". /etc/profile", "export PATH=$PATH:$PATH_OF_AGENT"]
    written += [f"env -0 > {shlex.quote(f'{directory}/{BEFORE}')}"]
    for number, line in enumerate(lines):
        failed = f"{{ echo {number} > {shlex.quote(f'{directory}/{FAILED}')}; exit 1; }}"
        written += [line, f"[ $? -eq 0 ] || {failed}"]
    written.append(f"env -0 > {shlex.quote(f'{directory}/{AFTER}')}")
    return "\n".join(written)


def changed(environment: Mapping[str, str], directory: str, fixed: Collection[str]) -> dict[str, str]:
    """The variables with what the setup changed, but for those in `fixed`. Directories that it added to PATH come after
    that of the program's Python, and before all others."""
    before, after = (_read(f"{directory}/{name}") for name in (BEFORE, AFTER))
    result = dict(environment)
    for name in before.keys() | after.keys():
        if name in fixed or name in _OF_THE_SHELL or not _NAME.fullmatch(name) or before.get(name) == after.get(name):
            continue
        if name == "PATH":
            there = before.get(name, "").split(os.pathsep)
            added = [path for path in after.get(name, "").split(os.pathsep) if path not in there]
            own, _, others = result.get(name, "").partition(os.pathsep)
            result[name] = os.pathsep.join(filter(None, (own, *added, others)))
        elif name in after:
            result[name] = after[name]
        else:
            result.pop(name, None)
    return result


def _read(path: str) -> dict[str, str]:
    """The variables of a file of `env -0`; empty without one."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - pathlib is slow to import
            entries = file.read().split("\0")
    except FileNotFoundError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
