"""`jobs list --watch` on a real terminal."""

import os
import re
import sys
from typing import Any

import pexpect
import pyte

from trainyard_protocol.errors import Unavailable
from unit.cli.scripted_server import Answer, Request, ScriptedServer, ok, refused

PATIENCE_S = 60
DONE = {"jobId": "done", "state": "SUCCEEDED", "createTime": "2025-11-20T11:30:00Z"}
DONE_ROW = "done    SUCCEEDED  2025-11-20"
RUNS = {"jobId": "runs", "state": "RUNNING", "createTime": "2025-11-20T11:00:00Z"}


def test_watch_shows_active_jobs_first_survives_an_outage_and_leaves_the_terminal_as_it_was(
    script: ScriptedServer,
) -> None:
    step = 0

    def answer(request: Request) -> Answer:
        nonlocal step
        if request.path.endswith("jobs:active"):
            step += 1
            return ok({"jobs": [{"project": "local", "job_id": "runs", "state": "RUNNING", "step": step}]})
        if step == 2:
            step += 1
            return refused(Unavailable("The server restarts."))
        active: list[Any] = [RUNS]
        return ok({"jobs": active if "CANCELLING" in request.path else [DONE, RUNS]})

    script.answers = [answer]
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}  # xdist's
    environment = {**inherited, "TRAINYARD_SERVER": script.url, "TRAINYARD_TOKEN": "secret", "TERM": "xterm"}
    command = [sys.executable, "-m", "trainyard_cli", "jobs", "list", "--watch", "--filter", "owner=me"]
    watch = pexpect.spawn(
        command[0], command[1:], env=environment, timeout=PATIENCE_S, encoding="utf-8", dimensions=(8, 60)
    )
    shown = Shown()
    watch.logfile_read = shown
    for text in ("step 1", "step 2", "The server restarts.", "step 4"):
        watch.expect_exact(text)
    whole = ("JOB_ID  STATUS     CREATED     PROGRESS", "runs    RUNNING    2025-11-20  step N", DONE_ROW)
    shown.tables.clear()  # those from before the outage
    while whole not in shown.tables:
        watch.expect_exact("step")  # of the next page: this one was read in part
    watch.send("q")
    watch.expect_exact(pexpect.EOF)
    watch.close()
    assert watch.exitstatus == 0
    assert "".join(shown.written).endswith("\x1b[?25h\x1b[?1049l")
    assert any("owner%3Dme%29+AND+state%3A" in request.path for request in script.requests)


class Shown:
    """A terminal of 60 x 8 that keeps the table of each page that is written to it."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.tables: set[tuple[str, ...]] = set()
        self._screen = pyte.Screen(60, 8)
        self._stream = pyte.Stream(self._screen)

    def write(self, text: str) -> None:
        self.written.append(text)
        for piece in re.split(r"(?=\x1b)", text):  # one read has pages and parts of pages
            self._stream.feed(piece)
            self.tables.add(tuple(re.sub(r"step \d+", "step N", row.rstrip()) for row in self._screen.display[1:4]))

    def flush(self) -> None:
        """Nothing is held."""
