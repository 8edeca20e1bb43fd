"""Programs of MLflow, W&B and TensorBoard (tests/programs/trackers), unchanged: they fill the list of jobs."""

import csv
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from beds.waiting import until
from e2e.harness import Service, started
from e2e.programs.test_programs import PROGRAMS

TRACKERS = PROGRAMS / "trackers"

pytestmark = [pytest.mark.e2e, pytest.mark.frameworks]


class Filled(NamedTuple):
    """Curves that a program must have, parameters with their values, and metrics with a value in the list."""

    curves: frozenset[str]
    parameters: dict[str, str]
    metrics: frozenset[str]
    words: tuple[str, ...] = ()


FILLED = {
    "plain_mlflow.py": Filled(
        frozenset({"loss", "val_accuracy", "fold/auc"}),
        {"lr": "0.1", "optimizer": "adam"},
        frozenset({"loss", "val_accuracy"}),
        ("--lr", "0.1"),
    ),
    "wandb_script.py": Filled(
        frozenset({"loss", "val/accuracy", "best_accuracy"}), {"lr": "0.05", "model/layers": "3"}, frozenset({"loss"})
    ),
    "tensorboard_alone.py": Filled(frozenset({"loss"}), {}, frozenset({"loss"})),
    "torch_tqdm.py": Filled(frozenset({"loss"}), {}, frozenset({"loss"})),
}


@pytest.fixture(scope="module")
def service(frameworks_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from started(tmp_path_factory.mktemp("trackers"), "--python", str(frameworks_python))


@pytest.mark.parametrize("program", FILLED)
def test_a_program_fills_the_list_the_curves_and_the_parameters(service: Service, program: str) -> None:
    filled, job = FILLED[program], program.partition(".")[0]
    file = TRACKERS / program if (TRACKERS / program).exists() else PROGRAMS / program
    words = ["--", *filled.words] if filled.words else []
    service.ok("jobs", "submit", "training", job, "--package-path", str(file), *words)
    assert service.wait_for(job, "SUCCEEDED", "FAILED", timeout=900) == "SUCCEEDED", service.log(job)
    with service.client() as client:
        until(lambda: filled.curves <= {curve.name for curve in client.metrics(job, points=100).metrics})
    until(lambda: all(shown_of(service, job, filled).values()), lambda: str(shown_of(service, job, filled)))
    shown = shown_of(service, job, filled)
    assert {name: shown[f"params.{name}"] for name in filled.parameters} == filled.parameters
    if program == "wandb_script.py":
        assert list((service.state_dir / "jobs").rglob("images/sample/*.png"))
    if program == "plain_mlflow.py":
        assert [file.read_text() for file in (service.state_dir / "jobs").rglob("mlflow/notes/note.txt")] == ["a note"]


def test_mlflow_reads_the_jobs(service: Service, frameworks_python: Path) -> None:
    program = PROGRAMS / "tracked" / "autologging" / "sklearn_autolog.py"
    service.ok("jobs", "submit", "training", "to_read", "--package-path", str(program))
    service.wait_for("to_read", "SUCCEEDED", timeout=900)
    with service.client() as client:
        server = client.server
    variables = {"MLFLOW_TRACKING_URI": server.url, "MLFLOW_TRACKING_TOKEN": server.token, "PATH": "/usr/bin:/bin"}
    command = str(frameworks_python.with_name("mlflow"))

    def run(*words: str) -> str:
        return subprocess.run([command, *words], env=variables, check=True, capture_output=True, text=True).stdout

    number = next(word for word in run("experiments", "search").split() if word.isdecimal())
    (line,) = [line for line in run("runs", "list", "--experiment-id", number).splitlines() if "to_read" in line]
    described = json.loads(run("runs", "describe", "--run-id", line.split()[-1]))
    assert (described["info"]["status"], described["data"]["params"]["max_iter"]) == ("FINISHED", "200")


def shown_of(service: Service, job: str, filled: Filled) -> dict[str, str]:
    """The parameters and metrics of the job in the list."""
    columns = [f"params.{name}" for name in filled.parameters] + [f"metrics.{name}.last" for name in filled.metrics]
    return row(service, job, *columns)


def row(service: Service, job: str, *columns: str) -> dict[str, str]:
    """The columns of the job in the list."""
    with service.client() as client:
        server = client.server
    answer = httpx.get(
        f"{server.url}/trainyard/v1/jobs.csv",
        params={"column": ["job", *columns], "filter": f"jobId={job}"},
        headers={"Authorization": f"Bearer {server.token}"},
    )
    assert answer.status_code == 200, answer.text
    (line,) = csv.DictReader(answer.text.splitlines())
    return {column: line[column] for column in columns}
