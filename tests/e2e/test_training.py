"""Training with the template, submitted as in the README."""

import json
import re
import shutil
import subprocess
import sys

import yaml

from e2e.harness import REPOSITORY, Service

TEMPLATE = REPOSITORY / "trainer_template"


def metrics(output: str, key: str) -> list[dict[str, object]]:
    """The JSON lines of a streamed log that have `key`."""
    lines = (re.search(r"\{.*\}$", line) for line in output.splitlines())
    values = [json.loads(match[0]) for match in lines if match]
    return [value for value in values if key in value]


def predict(service: Service, model: str, **environment: str) -> str:
    """Predictions of ten digits in a fresh process, with the model and without the service."""
    done = subprocess.run(
        [sys.executable, "-m", "trainer.predict", "--model", model, "--digits", "10"],
        cwd=TEMPLATE,
        env={**service.environment, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quickstart_on_chief_and_worker_succeeds_with_a_model_that_predicts(service: Service) -> None:
    config = str(REPOSITORY / "configs" / "quickstart.yaml")
    package = str(TEMPLATE / "trainer")
    output = service.train("quickstart", "--config", config, "--package-path", package, "--", "--epochs", "5")
    assert service.state("quickstart") == "SUCCEEDED"
    accuracies = [float(str(line["held_out_accuracy"])) for line in metrics(output, "held_out_accuracy")]
    assert accuracies[-1] >= 0.95
    assert "master-replica-0" in output
    assert "worker-replica-0" in output
    assert len({str(line["parameters_sha256"]) for line in metrics(output, "parameters_sha256")}) == 1
    job_dir = service.job_dir("quickstart")
    assert job_dir.is_dir()
    assert not list(job_dir.glob("workertemp*"))
    assert predict(service, str(job_dir / "model"))


def test_template_with_three_workers_agrees_and_saves_to_the_emulated_bucket(service: Service) -> None:
    copy = service.work / "template"
    shutil.copytree(TEMPLATE, copy, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["trainingInput"]["workerCount"] = 3
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    job_dir = "gs://models/digits"
    output = service.train(
        "four", "--config", "config.yaml", "--job-dir", job_dir, "--", "--epochs", "1", cwd=copy
    )
    hashes = [str(line["parameters_sha256"]) for line in metrics(output, "parameters_sha256")]
    assert len(hashes) == 4
    assert len(set(hashes)) == 1
    environment = json.loads(service.ok("jobs", "explain", "four", "-o", "json"))["environment"]
    emulator = {"STORAGE_EMULATOR_HOST": environment["STORAGE_EMULATOR_HOST"]}
    assert predict(service, f"{job_dir}/model", **emulator)


def test_parameter_servers_train_asynchronously_beside_an_evaluator(service: Service) -> None:
    config = yaml.safe_load((REPOSITORY / "configs" / "parameter-servers.yaml").read_text())
    config["trainingInput"]["workerCount"] = 1
    (service.work / "asynchronous.yaml").write_text(yaml.safe_dump(config))
    package = str(TEMPLATE / "trainer")
    output = service.train(
        "asynchronous", "--config", "asynchronous.yaml", "--package-path", package, "--", "--epochs", "5"
    )
    assert service.state("asynchronous") == "SUCCEEDED"
    accuracies = [float(str(line["held_out_accuracy"])) for line in metrics(output, "held_out_accuracy")]
    assert accuracies[-1] >= 0.9
    for task in ("ps-replica-0", "ps-replica-1", "worker-replica-0", "evaluator-replica-0"):
        assert task in output
    assert metrics(output, "staleness_mean")
