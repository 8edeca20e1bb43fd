"""The main job: the trainer template, submitted as the README says."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from e2e.harness import REPOSITORY, Service

TEMPLATE = REPOSITORY / "trainer_template"


def metrics(output: str, key: str) -> list[dict[str, object]]:
    """The JSON lines of a streamed log that have `key`."""
    lines = (re.search(r"\{.*\}$", line) for line in output.splitlines())
    values = [json.loads(match[0]) for match in lines if match]
    return [value for value in values if key in value]


def predict(model: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "trainer.predict", "--model", model, "--count", "10"],
        cwd=TEMPLATE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quickstart_on_chief_and_worker_succeeds_with_a_model_that_predicts(service: Service) -> None:
    output = service.ok(
        *["jobs", "submit", "training", "quickstart_1", "--stream-logs", "--config"],
        str(REPOSITORY / "configs" / "quickstart.yaml"),
        "--package-path",
        str(TEMPLATE / "trainer"),
        *["--", "--epochs", "5"],
        timeout=300,
    )
    assert service.state("quickstart_1") == "SUCCEEDED"
    (evaluation,) = metrics(output, "held_out_accuracy")[-1:]
    assert float(str(evaluation["held_out_accuracy"])) >= 0.95
    assert "master-replica-0" in output
    assert "worker-replica-0" in output
    assert len({str(m["parameters_sha256"]) for m in metrics(output, "parameters_sha256")}) == 1
    job_dir = Path(
        service.ok(*["jobs", "describe", "quickstart_1", "--format", "value(trainingInput.jobDir)"]).strip()
    )
    assert job_dir.is_dir()
    assert not list(job_dir.glob("workertemp*"))
    assert predict(str(job_dir / "model"))


def test_template_with_three_workers_ends_with_the_same_parameters_everywhere(service: Service) -> None:
    copy = service.work / "template"
    shutil.copytree(TEMPLATE, copy, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["trainingInput"]["workerCount"] = 3
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    output = service.ok(
        *[
            "jobs",
            "submit",
            "training",
            "four",
            "--config",
            "config.yaml",
            "--stream-logs",
            "--",
            "--epochs",
            "3",
        ],
        cwd=copy,
        timeout=300,
    )
    hashes = [str(m["parameters_sha256"]) for m in metrics(output, "parameters_sha256")]
    assert len(hashes) == 4
    assert len(set(hashes)) == 1


def test_template_saves_to_the_emulated_bucket_and_predicts_from_it(service: Service) -> None:
    service.ok(
        *[
            "jobs",
            "submit",
            "training",
            "bucket_1",
            "--config",
            "config.yaml",
            "--stream-logs",
            "--job-dir",
            "gs://models/digits",
        ],
        *["--", "--epochs", "1"],
        cwd=TEMPLATE,
        timeout=300,
    )
    environment = json.loads(service.ok(*["jobs", "explain", "bucket_1", "-o", "json"]))["environment"]
    done = subprocess.run(
        [sys.executable, "-m", "trainer.predict", "--model", "gs://models/digits/model", "--count", "10"],
        cwd=TEMPLATE,
        env={**service.environment, "STORAGE_EMULATOR_HOST": environment["STORAGE_EMULATOR_HOST"]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
