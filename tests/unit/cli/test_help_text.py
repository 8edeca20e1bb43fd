"""Help that is made beforehand: equal to the command tree's, and printed without loading it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard_cli import help_text

ROOT = Path(__file__).parents[3]
WITHOUT_CLICK = (
    "import sys; sys.modules['click'] = None; sys.argv[1:] = {words!r};from trainyard_cli.__main__ import main; main()"
)


def printed(*words: str, columns: str) -> str:
    """Output of the program where click cannot be imported."""
    environment = {**os.environ, "COLUMNS": columns}
    program = [sys.executable, "-c", WITHOUT_CLICK.format(words=[*words])]
    return subprocess.run(program, capture_output=True, text=True, check=True, env=environment).stdout


def full(*words: str, columns: str) -> str:
    """Output of the command tree."""
    program = f"import sys; sys.argv[1:] = {[*words]!r}; from trainyard_cli.main import main; main()"
    environment = {**os.environ, "COLUMNS": columns}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_help_pages_are_those_of_the_command_tree() -> None:
    command = [sys.executable, str(ROOT / "scripts/help_pages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), "python scripts/help_pages.py writes them anew"


@pytest.mark.parametrize(("words", "columns"), [("--help", "80"), ("-h", "200"), ("help", "80"), ("--version", "80")])
def test_first_page_of_help_and_version_need_no_click(words: str, columns: str) -> None:
    assert printed(words, columns=columns) == full(words, columns=columns)


def test_anything_else_is_left_to_the_command_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert help_text.of(["--help"])
    for words in ([], ["jobs", "--help"], ["--help", "jobs"], ["--version", "x"]):
        assert help_text.of(words) == ""
    monkeypatch.setenv("COLUMNS", "95")
    assert help_text.of(["--help"]) == ""


def test_help_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("w") as full_disk:
        command = [sys.executable, "-m", "trainyard_cli", "--help"]
        done = subprocess.run(command, stdout=full_disk, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr
