"""Records the first job of the trainer template on a terminal of 80 columns and 24 rows, for `make recording`.

Writes docs/recordings/digits.cast (asciicast 2: a line of text for each output, `asciinema play` shows it) and the
screens of it into docs/how-to/follow-jobs.md. The service of the recording is its own, in a temporary directory.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pyte

ROOT = Path(__file__).parents[1]
CAST = ROOT / "docs" / "recordings" / "digits.cast"
PAGE = ROOT / "docs" / "how-to" / "follow-jobs.md"
COLUMNS, ROWS = 80, 24
COMMAND = "jobs submit training digits --config config.yaml --stream-logs -- --epochs 5"
MARKS = ("2/5", "succeeded")
"""Texts of the last rows that are worth a screen: the first of each, and the end."""

SHOWN_STATE = "/home/me/trainyard"
"""In the recording, in place of the temporary directory, which has as many characters."""

BEGIN, END = "<!-- recording: made by scripts/record.py -->\n", "<!-- end of the recording -->\n"

Output = tuple[float, str]


def record(state: Path) -> Iterator[Output]:
    """The outputs of the command with their times."""
    yield 0.0, f"$ {COMMAND}\r\n"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TRAINYARD_STATE_DIR": str(state),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
    subprocess.run(["trainyard", "up", "--runtime", "process"], env=environment, check=True, stdout=sys.stderr)
    try:
        child = pexpect.spawn(
            COMMAND, env=environment, cwd=str(ROOT / "trainer_template"), encoding="utf-8", timeout=300,
            dimensions=(ROWS, COLUMNS),
        )  # fmt: skip
        start = time.monotonic()
        while True:
            try:
                output = child.read_nonblocking(65536)
            except pexpect.EOF:
                break
            yield 1.0 + time.monotonic() - start, output.replace(str(state), SHOWN_STATE)
        yield 1.0 + time.monotonic() - start, "$ "
    finally:
        subprocess.run(["trainyard", "down"], env=environment, check=True, stdout=sys.stderr)


def cast(outputs: list[Output]) -> str:
    header = {
        "version": 2,
        "width": COLUMNS,
        "height": ROWS,
        "title": "The first job",
        "env": {"TERM": "xterm-256color"},
    }
    events = [[round(at, 2), "o", text] for at, text in outputs]
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
    state = Path(tempfile.mkdtemp(prefix="ty", dir="/tmp"))
    state.rmdir()
    state = Path(str(state).ljust(len(SHOWN_STATE), "_")[: len(SHOWN_STATE)])
    try:
        text = cast(list(record(state)))
    finally:
        shutil.rmtree(state, ignore_errors=True)
    CAST.parent.mkdir(exist_ok=True)
    CAST.write_text(text, encoding="utf-8")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{section(text)}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    sys.stdout.write(f"wrote {CAST.relative_to(ROOT)} and the screens in {PAGE.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
