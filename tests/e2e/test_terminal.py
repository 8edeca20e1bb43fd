"""Following jobs on a terminal of 80 columns and 24 rows."""

import os
import re
import time
from collections.abc import Callable

import pexpect
import pytest

from e2e.harness import Service, local

pyte = pytest.importorskip("pyte", reason="pyte, of the dev extra, shows what a terminal would")

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
PROGRAM = """
import json, time
print("loading data", flush=True)
for step in range(1, 1001):
    epoch = {"epoch": 1 + step // 10, "epochs": 100}
    print(json.dumps({"step": step, "steps": 1000, "loss": 1 / step, **epoch}), flush=True)
    time.sleep(0.1)
"""


class Terminal:
    """A command on a terminal, and what its screen shows."""

    def __init__(self, service: Service, *words: str) -> None:
        self._screen = pyte.Screen(80, 24)
        self._stream = pyte.Stream(self._screen)
        environment = {name: value for name, value in service.environment.items() if name != "COLUMNS"}
        self.child = pexpect.spawn(
            "trainyard", list(words), env={**environment, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
            cwd=str(service.work), encoding="utf-8", dimensions=(24, 80),
        )  # fmt: skip

    @property
    def rows(self) -> list[str]:
        """The rows that are not empty."""
        return [row.rstrip() for row in self._screen.display if row.strip()] or [""]

    def wait_for(self, shown: Callable[[list[str]], object]) -> list[str]:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if shown(self.rows):
                return self.rows
            try:
                self._stream.feed(self.child.read_nonblocking(65536, timeout=0.2))
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                break
        assert shown(self.rows), "\n".join(self.rows)
        return self.rows

    def end(self) -> int:
        """Read to the end; the exit code."""
        self.wait_for(lambda _: not self.child.isalive() and self._is_read())
        self.child.close()
        return int(self.child.exitstatus)

    def _is_read(self) -> bool:
        try:
            self._stream.feed(self.child.read_nonblocking(65536, timeout=0.2))
        except pexpect.EOF:
            return True
        return False


def test_job_is_followed_left_listed_and_cancelled_on_a_terminal(service: Service) -> None:
    service.program(PROGRAM)
    service.config(**local(workers=1))
    followed = Terminal(service, "jobs", "submit", "training", "shown", "--config", "config.yaml", "--stream-logs")
    followed.wait_for(lambda rows: re.search(r"[━╸╺─] \d+/1000  .*loss .* steps/s  .* left", rows[-1]))
    rows = followed.wait_for(lambda rows: any("epoch 2/100  loss" in row for row in rows))
    assert sum("loading data (2 replicas)" in row for row in rows) == 1
    assert not any("{" in row for row in rows)
    followed.child.sendintr()
    assert followed.end() == 130
    assert followed.rows[-2] == "The job goes on. To see its log again:  jobs stream-logs shown"
    assert not any("RUNNING" in row for row in followed.rows)

    watch = Terminal(service, "jobs", "list", "--watch")
    watch.wait_for(lambda rows: any(re.match(r"shown +RUNNING .* step \d+/1000, loss", row) for row in rows))
    watch.child.send("q")
    assert watch.end() == 0
    assert re.search(r"^shown +RUNNING", service.ok("jobs", "list"), re.MULTILINE)

    cancelled = Terminal(service, "jobs", "stream-logs", "shown", "--cancel-on-interrupt")
    cancelled.wait_for(lambda rows: "left" in rows[-1])
    os.kill(cancelled.child.pid, 2)
    assert cancelled.end() == 1
    assert any("Cancelling job [shown]." in row for row in cancelled.rows)
    assert any("Job [shown] was cancelled after" in row for row in cancelled.rows)
