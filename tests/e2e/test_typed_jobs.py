"""Jobs typed in a shell, and driven by a pipeline."""

import json
import subprocess

from e2e.harness import Service, local


def test_submit_typed_in_a_shell_runs_a_job(service: Service) -> None:
    """The shell that asks counts, not the login shell; tests/e2e/test_shells.py has the other ones."""
    service.program("import sys\nprint('epochs', sys.argv[sys.argv.index('--epochs') + 1])\n")
    service.config(**local())
    typed = 'eval "$(trainyard shell-init)"\njobs submit training --config config.yaml -- --epochs 5\n'
    environment = {**service.environment, "SHELL": "/bin/false"}
    done = subprocess.run(
        ["bash"],
        input=typed,
        env=environment,
        cwd=service.work,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = dict(line.split(": ") for line in done.stdout.splitlines() if ": " in line)
    assert printed["state"] == "QUEUED"
    service.wait_for(printed["jobId"], "SUCCEEDED")
    assert "epochs 5" in service.ok("jobs", "stream-logs", printed["jobId"])


def test_pipeline_submits_once_waits_with_a_limit_reads_metrics_and_deletes(service: Service) -> None:
    service.program(
        """
        import json, pathlib, sys, time
        for step in (1, 2, 3):
            print(json.dumps({"event": "progress", "step": step, "accuracy": 0.5 + step / 10}), flush=True)
        while not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.05)
        sys.exit(3)
        """
    )
    service.config(**local())
    go_on = service.work / "go-on"
    submit = ("jobs", "submit", "training", "nightly", "--config", "config.yaml", "--if-not-exists", "--")
    for _ in range(2):
        assert service.ok(*submit, str(go_on)).startswith("jobId: nightly\n")
    other = service.run(*submit, "elsewhere")
    assert other.returncode == 1
    assert f"  args: the job has {go_on}; this submission has elsewhere\n" in other.stderr
    service.ok("jobs", "wait", "nightly", "--for-state", "running", "--timeout", "90s")
    assert service.run("jobs", "wait", "nightly", "--timeout", "0s").returncode == 124
    go_on.touch()
    assert service.run("jobs", "wait", "nightly", "--timeout", "90s").returncode == 3
    (accuracy,) = json.loads(service.ok("jobs", "metrics", "nightly", "--format", "json"))
    assert (accuracy["name"], accuracy["step"], accuracy["value"]) == ("accuracy", 3, 0.8)
    own = service.state_dir / "jobs" / "local" / "nightly"
    assert own.is_dir()
    service.ok("jobs", "delete", "nightly", "--yes")
    assert (service.state("nightly"), own.exists()) == ("", False)
