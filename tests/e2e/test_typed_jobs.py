"""`jobs submit training` typed in each shell runs a job."""

import os
import shutil
import subprocess

import pytest

from e2e.harness import Service, local

LINE = "jobs submit training --config config.yaml -- --epochs 5"
INIT = {
    "bash": 'eval "$(trainyard shell-init)"',
    "zsh": 'eval "$(trainyard shell-init)"',
    "dash": 'eval "$(trainyard shell-init)"',
    "fish": "trainyard shell-init | source",
}


@pytest.mark.parametrize("shell", sorted(INIT))
def test_submit_typed_in_each_shell_runs_a_job(service: Service, shell: str) -> None:
    if shutil.which(shell) is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{shell} is not installed, and CI tests every shell")
        pytest.skip(f"{shell} is not installed")
    service.program("import sys\nprint('epochs', sys.argv[sys.argv.index('--epochs') + 1])\n")
    service.config(**local())
    done = subprocess.run(
        [shell],
        input=f"{INIT[shell]}\n{LINE}\n",
        env={**service.environment, "SHELL": "/bin/false"},  # the shell that asks counts, not the login shell
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
