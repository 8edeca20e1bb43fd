"""One rank, started as srun does it on a node."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from beds.waiting import until
from trainyard_agent.engines.slurm import rank
from trainyard_agent.runtimes.log_file import RunLogs

TASK = "master-replica-0"
_WRITER = r"""
import os, sys, time
os.write(1, b"early\nand ")
while not os.path.exists("go"):
    time.sleep(0.01)
os.write(1, b"so late\nthe password\n")
os.close(os.open("written", os.O_CREAT))
time.sleep(1000)
"""


@pytest.fixture
def replica(tmp_path: Path) -> Path:
    """The directory of the only replica of a run."""
    directory = tmp_path / "run" / TASK
    (directory / "work").mkdir(parents=True)
    (tmp_path / "run" / "addresses").mkdir()
    (tmp_path / "run" / "tasks.json").write_text(json.dumps({"tasks": [TASK]}))
    launch = {
        "command": [sys.executable, "-c", _WRITER],
        "environment": {"PATH": os.environ["PATH"]},
        "fixed": [],
        "placeholders": {TASK: "host:1"},
        "directory": str(directory / "work"),
        "cpus": [],
        "log_quota": 0,
        "grace_s": 1.0,
        "poll_s": 0.1,
        "usage_s": 60.0,
    }
    (directory / "launch.json").write_text(json.dumps(launch))
    (directory / "secrets.json").write_text(json.dumps({"environment": {}, "values": ["password"]}))
    return directory


def test_guard_of_a_supervisor_that_was_killed_loses_no_line(replica: Path) -> None:
    logs = RunLogs(replica.parent.parent)

    def texts() -> list[str]:
        return [line.text for line in logs.read("run", TASK, 0, 100, 1 << 20).lines]

    command = [sys.executable, "-I", "-S", rank.__file__, str(replica.parent)]
    with subprocess.Popen(command, env={"SLURM_PROCID": "0", "PATH": os.environ["PATH"]}) as guard:
        try:
            until(lambda: texts() == ["early"])
            (supervisor,) = psutil.Process(guard.pid).children()
            supervisor.send_signal(signal.SIGSTOP)
            (replica / "work" / "go").touch()
            until((replica / "work" / "written").exists)
            supervisor.kill()
            assert guard.wait(60) == 0
        finally:
            guard.kill()
    log = logs.read("run", TASK, 0, 100, 1 << 20)
    assert [line.text for line in log.lines] == ["early", "and so late", "the ***"]
    assert (log.complete, log.missing) == (True, 0)
    assert not (replica / "secrets.json").exists()
