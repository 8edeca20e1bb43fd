"""`eval "$(trainyard shell-init)"` in real shells: our subcommands run trainyard, the rest the builtin."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from beds.installed.missing import need_program

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0

STUB = """\
#!{python}
import json, os, sys
if sys.argv[1:2] == ["jobs"]:
    with open({record!r}, "a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\\n")
    print("recorded", len(sys.argv) - 2, "words")
else:
    from trainyard_cli.main import main
    main()
"""

START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "dash": ["dash", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
INIT = {
    "bash": 'eval "$(trainyard shell-init bash)"',
    "zsh": 'eval "$(trainyard shell-init zsh)"',
    "dash": 'eval "$(trainyard shell-init dash)"',
    "fish": "trainyard shell-init fish | source",
}


class Shell:
    """Interactive shell on a terminal. `trainyard` on its PATH records the arguments of `jobs` and runs everything else
    for real."""

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        self._record = home / "words.jsonl"
        stub = home / "bin" / "trainyard"
        stub.parent.mkdir()
        stub.write_text(STUB.format(python=sys.executable, record=str(self._record)))
        stub.chmod(0o755)
        self.environment = {
            "HOME": str(home),
            "PATH": f"{stub.parent}:{os.environ['PATH']}",
            "TERM": "xterm",
            "LANG": "C.UTF-8",
            "PS1": "$ ",
            "TRAINYARD_STATE_DIR": str(home / "state"),
        }
        command, *arguments = START[name]
        self._child = pexpect.spawn(
            command,
            arguments,
            env=self.environment,
            cwd=str(home),
            encoding="utf-8",
            timeout=PATIENCE_S,
            dimensions=(40, 200),
        )
        self._commands = 0
        self.run(":" if name != "fish" else "true")

    def run(self, line: str) -> str:
        """Type a line, wait until the shell has run it, and return its output."""
        self._commands += 1
        sum_ = f"$((1000 + {self._commands}))" if self.name != "fish" else f"(math 1000 + {self._commands})"
        self._child.sendline(line)
        self._child.sendline(f"echo done-{sum_}-done")
        self._child.expect(f"done-{1000 + self._commands}-done")
        return str(self._child.before)

    def type_keys(self, keys: str) -> None:
        self._child.send(keys)

    def recorded(self) -> list[list[str]]:
        """The arguments of each `jobs` call that reached trainyard."""
        if not self._record.exists():
            return []
        return [json.loads(line) for line in self._record.read_text().splitlines()]

    def wait_for_words(self) -> list[str]:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if words := self.recorded():
                return words[-1]
            time.sleep(0.05)
        pytest.fail(f"no command reached trainyard; the terminal shows: {self._child.before}")

    def close(self) -> None:
        self._child.close(force=True)


@pytest.fixture(params=sorted(START))
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    need_program(request.param)
    opened = Shell(request.param, tmp_path)
    try:
        opened.run(INIT[request.param])
        yield opened
    finally:
        opened.close()


WORDS = {
    "jobs submit training --config config.yaml -- --epochs 5": (
        ["submit", "training", "--config", "config.yaml", "--", "--epochs", "5"]
    ),
    """jobs submit training -- --note 'two  words; $HOME *' "" --x=1""": (
        ["submit", "training", "--", "--note", "two  words; $HOME *", "", "--x=1"]
    ),
    **{
        f"jobs {words}": words.split()
        for words in (
            *("describe a", "list", "cancel a", "stream-logs a", "update a", "explain a", "validate a"),
            *("--help", "-h", "help", "submt training x", "Nosuch"),  # help, and verbs that were mistyped
        )
    },
}
"""Lines that are typed, and the words of each that trainyard gets."""


def test_jobs_typed_in_a_shell_reaches_trainyard_with_its_words_each_whole(shell: Shell) -> None:
    printed = [shell.run(line) for line in WORDS]
    assert shell.recorded() == [["jobs", *words] for words in WORDS.values()]
    assert "recorded 7 words" in printed[0]
    assert not any("no such" in text.lower() for text in printed)
    shell.run(INIT[shell.name])  # a second time changes nothing
    shell.run("jobs list --limit 3")
    assert shell.recorded()[len(WORDS) :] == [["jobs", "list", "--limit", "3"]]


def test_jobs_without_a_verb_of_ours_is_still_the_builtin(shell: Shell) -> None:
    shell.run("sleep 60 &")
    plain, with_pid, one = shell.run("jobs"), shell.run("jobs -l"), shell.run("jobs %1")
    assert re.search(r"\b\d{2,}\b", shell.run("jobs -p"))
    shell.run("kill %1")
    for listing in (plain, with_pid, one):
        assert "sleep 60" in listing
        assert "unning" in listing
    assert shell.recorded() == []


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"], indirect=True)
def test_tab_after_the_start_of_a_verb_or_of_a_flag_completes_it(shell: Shell) -> None:
    shell.type_keys("jobs sub\ttraining --conf\tc.yaml\r")
    assert shell.wait_for_words() == ["jobs", "submit", "training", "--config", "c.yaml"]


@pytest.mark.parametrize(
    ("name", "options"), [("bash", "-eu"), ("zsh", "-eu"), ("dash", "-eu"), ("fish", "--no-config")]
)
def test_shell_init_in_a_strict_script_does_not_end_it(name: str, options: str, tmp_path: Path) -> None:
    need_program(name)
    script = f"{INIT[name]}\njobs\njobs list\necho reached the end\n"
    shell = Shell(name, tmp_path)
    shell.close()
    done = subprocess.run(
        [name, options, "-c", script], env=shell.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("reached the end\n")
    assert done.stderr == ""
    assert shell.recorded() == [["jobs", "list"]]
