"""Options of a job for Slurm: arguments of sbatch, its time limit, and its setup."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from contract.runtimes.runtime_labs import order
from trainyard_agent.engines.slurm import run_files, setup, spec
from trainyard_agent.engines.slurm.spec import SlurmDefaults
from trainyard_agent.runtimes.base import Launch
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.wire.sync import RunOrder

CHIEF = "master-replica-0"


def asking(**fields: Any) -> RunOrder:
    update = {"training_input": parse_training_input(fields)}
    return order("r", CHIEF, grace_s=30.0).model_copy(update=update)


def arguments(asked: RunOrder, defaults: SlurmDefaults | None = None, longest_s: float = float("inf")) -> set[str]:
    return set(spec.arguments(asked, "/d", str.lower, defaults or SlurmDefaults(), longest_s))


def test_options_of_a_job_come_before_those_of_the_agent() -> None:
    agents = SlurmDefaults("gpu", "site", "normal")
    assert {"--partition=gpu", "--account=site", "--qos=normal"} <= arguments(asking(), agents)
    options = {"account": "a", "qos": "q", "constraint": "x&y", "reservation": "r", "exclusive": True}
    found = arguments(asking(engineOptions={"slurm": options}), agents)
    assert {"--account=a", "--qos=q", "--constraint=x&y", "--reservation=r", "--exclusive"} <= found
    assert not {"--account=site", "--qos=normal"} & found
    assert "--mem=0" in found  # --mem-per-cpu would count for all CPUs of a node
    plain = ("--qos", "--account", "--constraint", "--reservation", "--exclusive", "--time", "--partition")
    assert not [word for word in arguments(asking()) if word.startswith(plain)]


@pytest.mark.parametrize(
    ("scheduling", "longest_s", "limit"),
    [
        ({}, float("inf"), ""),
        ({"priority": 3}, 60.0, ""),
        ({"maxRunningTime": "3600s"}, float("inf"), "--time=66"),
        ({"maxRunningTime": "3600s"}, 3661.0, "--time=61"),
        ({"maxRunningTime": "3600s"}, 7200.0, "--time=66"),
        ({"maxRunningTime": "3600s"}, 30.0, "--time=1"),
    ],
)
def test_time_limit_is_that_of_the_job_and_never_above_the_partitions(
    scheduling: dict[str, Any], longest_s: float, limit: str
) -> None:
    found = arguments(asking(scheduling=scheduling), longest_s=longest_s)
    assert [word for word in found if word.startswith("--time")] == ([limit] if limit else [])


def run_setup(tmp_path: Path, *lines: str) -> int:
    """The exit code of the batch script of a job with these lines, in which `srun` does nothing."""
    if not shutil.which("bash"):
        pytest.skip("there is no bash")
    asked = asking(engineOptions={"slurm": {"setup": list(lines)}})
    text = spec.script(asked, str.lower, ["rank"], str(tmp_path))
    assert text.startswith("#!/bin/bash\n")
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "script").write_text(f"export PATH={tmp_path}:$PATH GONE=1\n{text}")
    return subprocess.run(["bash", "--norc", str(tmp_path / "script")], check=False).returncode


def test_program_gets_what_the_setup_changes_and_keeps_what_the_job_and_the_service_say(tmp_path: Path) -> None:
    lines = (
        "export PATH=/apps/cuda/bin:$PATH LD_LIBRARY_PATH=/apps/cuda/lib TF_CONFIG=wrong  # a comment",
        "export OWN=changed NEW='a=b;c'",
        "unset GONE",
        "function tool() { true; }; export -f tool; cd /",
    )
    assert run_setup(tmp_path, *lines) == 0
    inherited = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/old", "HOME": "/home/u"}
    launch = Launch(CHIEF, ("/venv/bin/python",), {"TF_CONFIG": "{}", "OWN": "of the job"}, (), 0)
    environment = {
        "PATH": "/venv/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": "/old",
        "GONE": "1",
        "HOME": "/home/u",
        **launch.environment,
    }
    fixed = run_files.fixed_variables(environment, launch, inherited)
    assert fixed == ["GONE", "OWN", "TF_CONFIG"]
    assert setup.changed(environment, str(tmp_path), fixed=["OWN", "TF_CONFIG"]) == {
        "PATH": "/venv/bin:/apps/cuda/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": "/apps/cuda/lib",
        "HOME": "/home/u",
        "NEW": "a=b;c",
        "TF_CONFIG": "{}",
        "OWN": "of the job",
    }
    assert setup.changed(environment, str(tmp_path / "nowhere"), []) == environment


def test_line_of_a_setup_that_fails_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    lines = ("true", "ls /nowhere", "touch started")
    assert run_setup(tmp_path, *lines) == 1
    asked = asking(engineOptions={"slurm": {"setup": list(lines)}})
    assert run_files.failed_setup(tmp_path, asked) == "Line 2 (ls /nowhere)"
    assert not (tmp_path / setup.AFTER).exists()
    assert not (Path(os.curdir) / "started").exists()
    assert run_files.failed_setup(tmp_path / "other", asked) == ""
