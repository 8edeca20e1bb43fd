"""Records sessions on a terminal of 80 columns and 24 rows, for `make recording`.

Writes docs/recordings/*.cast (asciicast 2: a line of text for each output, `asciinema play` shows it): the first
session of a newcomer, and the first job of the trainer template, whose screens go into docs/how-to/follow-jobs.md too.
The service of a recording is its own, in a temporary directory.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pexpect
import pyte

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "follow-jobs.md"
COLUMNS, ROWS = 80, 24
MARKS = ("2/5", "succeeded")
"""Texts of the last rows that are worth a screen: the first of each, and the end."""

SHOWN_STATE, SHOWN_DIRECTORY = "/home/me/trainyard", "/home/me/first-training"
"""In the recording, in place of the temporary directories, which have as many characters."""

PROMPT = "\x1b]133;A\x07"
"""The mark of shell integration that bash prints before each prompt; it is not in the recording."""

RC = """\
PS1='$ ' PS2='> '
PROMPT_COMMAND='printf "\\033]133;A\\007"'
bind 'set enable-bracketed-paste off'
eval "$(trainyard shell-init bash)"
"""

BEGIN, END = "<!-- recording: made by scripts/record.py -->\n", "<!-- end of the recording -->\n"

Output = tuple[float, str]


@dataclass(frozen=True)
class Session:
    """Commands that are typed into bash, in a directory; an empty one where it is None."""

    name: str
    title: str
    commands: tuple[str, ...]
    directory: Path | None = None
    up: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return ROOT / "docs" / "recordings" / f"{self.name}.cast"


FIRST = Session(
    "first-session",
    "The first session",
    (
        "cat > train.py <<'END'\n"
        "import time\n"
        "for step in range(1, 101):\n"
        "    time.sleep(0.1)\n"
        '    print(f"step {step}/100 loss={2 / step ** 0.5:.4f}")\n'
        "END",
        "jobs submit training first --package-path train.py --stream-logs",
        "jobs list",
        "jobs describe first",
        "jobs --help",
    ),
)
DIGITS = Session(
    "digits",
    "The first job of the trainer template",
    ("jobs submit training digits --config config.yaml --stream-logs -- --epochs 5",),
    ROOT / "trainer_template",
    ("--runtime", "process"),
)


def record(session: Session, state: Path, scratch: Path) -> Iterator[Output]:
    """The outputs of a session with their times, in seconds. The service runs before it begins."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TRAINYARD_STATE_DIR": str(state),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
    rc = scratch / "rc"
    rc.write_text(RC, encoding="utf-8")
    directory = session.directory or _as_long(scratch / "d", SHOWN_DIRECTORY)
    directory.mkdir(exist_ok=True)
    subprocess.run(["trainyard", "up", *session.up], env=environment, check=True, stdout=sys.stderr)
    try:
        shell = pexpect.spawn(
            "bash", ["--rcfile", str(rc), "-i"], env=environment, cwd=str(directory), encoding="utf-8", timeout=300,
            dimensions=(ROWS, COLUMNS),
        )  # fmt: skip
        *_, prompt = _until_prompt(shell)
        yield 0.0, prompt
        start = time.monotonic()
        for command in session.commands:
            for line in command.splitlines():
                shell.sendline(line)
            for output in _until_prompt(shell):
                text = output.replace(str(state), SHOWN_STATE).replace(str(directory), SHOWN_DIRECTORY)
                yield time.monotonic() - start, text
        shell.sendeof()
    finally:
        subprocess.run(["trainyard", "down"], env=environment, check=True, stdout=sys.stderr)


def _as_long(path: Path, shown: str) -> Path:
    """A path with as many characters as another, so that tables keep their columns."""
    return Path(str(path).ljust(len(shown), "_"))


def _until_prompt(shell: "pexpect.spawn[str]") -> Iterator[str]:
    """The outputs of one command, up to the mark of the next prompt."""
    waiting = ""
    while True:
        waiting += shell.read_nonblocking(65536, timeout=300)
        before, mark, rest = waiting.partition(PROMPT)
        if mark:
            yield before
            yield rest
            return
        begun = next((n for n in range(len(PROMPT) - 1, 0, -1) if waiting.endswith(PROMPT[:n])), 0)
        yield waiting[: len(waiting) - begun]
        waiting = waiting[len(waiting) - begun :]


def cast(session: Session, outputs: list[Output]) -> str:
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": session.title, "env": {"TERM": "xterm-256color"}}
    events = [[round(at, 2), "o", text] for at, text in outputs if text]
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in (header, *events))


def screens(text: str) -> Iterator[tuple[float, list[str]]]:
    """The screen after each output of a cast. Raises ValueError once a row has left it at the top."""
    screen = pyte.HistoryScreen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    for line in text.splitlines()[1:]:
        at, _, output = json.loads(line)
        stream.feed(output)
        if screen.history.top:
            raise ValueError("the recording does not fit on one screen")
        rows = [row.rstrip() for row in screen.display]
        yield at, rows[: max((number for number, row in enumerate(rows, 1) if row), default=0)]


def section(text: str) -> str:
    """The screens worth showing, in Markdown."""
    shown, last = [], (0.0, [""])
    marks = list(MARKS)
    for at, rows in screens(text):
        last = at, rows
        if marks and any(marks[0] in row for row in rows[-2:]):
            marks.pop(0)
            shown.append(last)
    shown[-1] = last
    parts = ["\n".join([f"After {at:.0f} seconds:\n", "```text", *rows, "```\n"]) for at, rows in shown]
    return "\n".join(parts)


def main() -> None:
    for session in (FIRST, DIGITS):
        scratch = Path(tempfile.mkdtemp(prefix="ty", dir="/tmp"))
        state = _as_long(scratch / "s", SHOWN_STATE)
        try:
            text = cast(session, list(record(session, state, scratch)))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        session.path.parent.mkdir(exist_ok=True)
        session.path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {session.path.relative_to(ROOT)}\n")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{section(text)}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    sys.stdout.write(f"wrote its screens into {PAGE.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
