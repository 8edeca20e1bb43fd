"""scripts/setup.sh with interpreters of the test's own, which install nothing."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup.sh"
PYTHON = """#!/bin/sh
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *--editable*) exit {code} ;;
esac
"""


@pytest.mark.parametrize("code", [0, 3])
def test_setup_in_a_log_says_each_thing_that_it_does_and_fails_as_pip_does(tmp_path: Path, code: int) -> None:
    python = tmp_path / "python"
    python.write_text(PYTHON.format(code=code))
    python.chmod(0o755)
    done = subprocess.run(
        [SCRIPT, python, tmp_path / "venv", "demo"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines() == [
        f"Creating the virtual environment {tmp_path / 'venv'}.",
        f"Setting up {tmp_path / 'venv'} (demo); the first time takes a minute or two.",
        " installing requirements/pip.txt",
        " installing requirements/demo.txt",
        " installing this project",
    ]
