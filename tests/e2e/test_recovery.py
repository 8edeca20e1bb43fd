"""Recovery: server and agent killed during a job, `down` and `up` during a job, nothing left after `down`."""

import json
import os
import re
import signal
from contextlib import suppress

import psutil

from e2e.harness import Service, local

COUNTS = """
import json, os, pathlib, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
for n in range(120):
    print(f"{task['type']} line {n}", flush=True)
    time.sleep(0.1)
worker_is_done = pathlib.Path(os.environ["TRAINYARD_JOB_DIR"]) / "worker_is_done"
if task["type"] == "worker":
    worker_is_done.touch()
while not worker_is_done.exists():  # the chief's end is the job's, and ends the worker
    time.sleep(0.1)
"""


def pid_of(service: Service, module: str) -> int:
    found = []
    for process in service.processes():
        with suppress(psutil.NoSuchProcess):  # of a job that has just ended
            words = process.cmdline()
            found += [process.pid] if "-m" in words and module in words else []
    (pid,) = found
    return pid


def lines_of(output: str, task: str) -> list[int]:
    return [int(n) for n in re.findall(rf"{task} line (\d+)$", output, re.M)]


def test_job_survives_kill_of_server_then_of_agent_with_every_line_exactly_once(own_service: Service) -> None:
    service = own_service
    service.program(COUNTS)
    service.config(**local(workers=1))
    stream = service.start("jobs", "submit", "training", "survivor", "--config", "config.yaml", "--stream-logs")
    service.wait_for("survivor", "RUNNING")
    service.wait_for_line("survivor", "line 20")

    os.kill(pid_of(service, "trainyard_server"), signal.SIGKILL)
    service.ok("up")
    service.wait_for_line("survivor", "line 50")

    os.kill(pid_of(service, "trainyard_agent"), signal.SIGKILL)
    service.ok("up")

    out, err = stream.communicate(timeout=120)
    assert stream.returncode == 0, out + err
    assert service.state("survivor") == "SUCCEEDED"
    again = service.ok("jobs", "stream-logs", "survivor")
    for output in (err, again):
        assert lines_of(output, "chief") == list(range(120))
        assert lines_of(output, "worker") == list(range(120))
    detail = json.loads(service.ok("jobs", "describe", "survivor", "-o", "json", "--all"))
    assert len(detail["runs"]) == 1


def test_down_in_the_middle_of_a_job_leaves_no_process_and_up_runs_it_again(own_service: Service) -> None:
    service = own_service
    service.program(
        """
        import os, pathlib, subprocess, time
        mark = pathlib.Path(os.environ["TRAINYARD_JOB_DIR"]) / "second"
        if not mark.exists():
            mark.touch()
            # A descendant that leaves its session and ignores SIGTERM must go as well.
            subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; while :; do sleep 1; done"])
            print("first", flush=True)
            time.sleep(600)
        print("second", flush=True)
        """
    )
    service.config(**local())
    service.ok("jobs", "submit", "training", "interrupted", "--config", "config.yaml")
    service.wait_for_line("interrupted", "first")
    printed = service.run("down")
    assert printed.returncode == 0
    assert "interrupted" in printed.stdout + printed.stderr
    assert service.processes() == []
    service.ok("up")
    service.wait_for("interrupted", "SUCCEEDED")
    detail = json.loads(service.ok("jobs", "describe", "interrupted", "-o", "json", "--all"))
    assert [run["verdict"]["reason"] for run in detail["runs"]] == ["HOST_SHUTDOWN", "COMPLETED"]


def test_up_twice_starts_nothing_twice_and_down_twice_is_harmless(own_service: Service) -> None:
    """A process that another release has started stays, too, with a notice."""
    service = own_service
    before = {p.pid for p in service.processes()}
    assert "release" not in service.run("up").stderr
    record = service.state_dir / "run" / "agent.json"
    agent = json.loads(record.read_text())
    record.write_text(json.dumps({**agent, "command": ["/of/another/release/python", *agent["command"][1:]]}))
    assert "The agent is running as another release or environment started it." in service.run("up").stderr
    assert {p.pid for p in service.processes()} == before
    service.ok("status")
    check_secrets(service)
    service.ok("down")
    service.ok("down")
    assert service.processes() == []
    assert service.run("status").returncode == 3


def check_secrets(service: Service) -> None:
    """Files of tokens are readable by their owner alone, and replicas hold none."""
    secrets = [service.state_dir / "token", service.state_dir / "agent-token"]
    assert [oct(path.stat().st_mode & 0o777) for path in secrets] == ["0o600", "0o600"]
    assert oct(service.state_dir.stat().st_mode & 0o777) == "0o700"
    service.program("import os\nfor k, v in os.environ.items(): print(f'{k}={v}')\n")
    service.config(**local())
    output = service.train("prints_env", "--config", "config.yaml")
    assert "TF_CONFIG=" in output
    assert not any(path.read_text().strip() in output for path in secrets)
