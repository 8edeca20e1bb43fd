"""`jobs list --watch` on a real terminal."""

import io
import os
import sys

import pexpect

from trainyard_protocol.errors import Unavailable
from unit.cli.scripted_server import Answer, Request, ScriptedServer, ok, refused

PATIENCE_S = 60
DONE = {"jobId": "done", "state": "SUCCEEDED", "createTime": "2025-11-20T11:30:00Z"}
RUNS = {"jobId": "runs", "state": "RUNNING", "createTime": "2025-11-20T11:00:00Z"}


def test_watch_has_active_jobs_first_survives_outages_and_restores_the_terminal(script: ScriptedServer) -> None:
    step = 0

    def answer(request: Request) -> Answer:
        nonlocal step
        if request.path.endswith("jobs:active"):
            step += 1
            return ok({"jobs": [{"project": "local", "job_id": "runs", "state": "RUNNING", "step": step}]})
        if step == 2:
            step += 1
            return refused(Unavailable("The server restarts."))
        return ok({"jobs": [RUNS] if "CANCELLING" in request.path else [DONE, RUNS]})

    script.answers = [answer]
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}  # xdist's
    environment = {**inherited, "TRAINYARD_SERVER": script.url, "TRAINYARD_TOKEN": "secret", "TERM": "xterm"}
    words = ["-m", "trainyard_cli", "jobs", "list", "--watch", "--filter", "owner=me"]
    watch = pexpect.spawn(
        sys.executable, words, env=environment, timeout=PATIENCE_S, encoding="utf-8", dimensions=(8, 60)
    )
    watch.logfile_read = written = io.StringIO()
    for text in ("step 1", "step 2", "The server restarts.", "step 4"):
        watch.expect_exact(text)
    watch.expect("JOB_ID[^J]*runs[^J]*done")
    watch.send("q")
    watch.expect_exact(pexpect.EOF)
    watch.close()
    assert watch.exitstatus == 0
    assert written.getvalue().endswith("\x1b[?25h\x1b[?1049l")
    assert any("owner%3Dme%29+AND+state%3A" in request.path for request in script.requests)
