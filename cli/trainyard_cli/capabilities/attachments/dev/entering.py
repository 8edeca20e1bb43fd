"""Commands that `jobs dev` runs in a replica: its shell, the receiver of the code, and the request for JupyterLab."""

from pathlib import Path
from typing import Final

from trainyard_cli.capabilities.attachments.dev import notebook_request, receiver

_FIND: Final = """
d=$PWD; [ -w "$d" ] || d=${TMPDIR:-/tmp}
d=$d/trainyard-dev
n=0
until [ -s "$d/python" ]; do
    n=$((n + 1))
    if [ "$n" -gt 300 ]; then echo "The program of jobs dev does not run in this replica." >&2; exit 1; fi
    sleep 0.2
done
python=$(cat "$d/python")
"""
"""Finds the directory by the rule of the waiting program, and waits until that has begun."""

_SHELL: Final = """
cd "$d/code" || exit 1
export PATH="${python%/*}:$PATH" PYTHONPATH="$d/code:$d/code/src${PYTHONPATH:+:$PYTHONPATH}"
if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi
"""


def shell_command() -> tuple[str, ...]:
    """A shell in the directory of the code, whose `python` is that of the job's packages."""
    return ("sh", "-c", _FIND + _SHELL)


def receiver_command() -> tuple[str, ...]:
    return _python(receiver.__file__)


def notebook_command() -> tuple[str, ...]:
    return _python(notebook_request.__file__)


def _python(file: str) -> tuple[str, ...]:
    source = Path(file).read_text(encoding="utf-8")
    return ("sh", "-c", _FIND + 'exec "$python" -I -c "$1" "$d"\n', "sh", source)
