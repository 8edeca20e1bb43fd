"""Training with the template and with the library of trainers, submitted as in their READMEs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from e2e.harness import REPOSITORY, Service

TEMPLATE = REPOSITORY / "trainer_template"
LIBRARY = str(REPOSITORY / "trainer_library" / "trainyard_trainer")


def metrics(output: str, key: str) -> list[dict[str, object]]:
    """The JSON lines of a streamed log that have `key`."""
    lines = (re.search(r'\{".*\}$', line) for line in output.splitlines())
    values = [json.loads(match[0]) for match in lines if match]
    return [value for value in values if key in value]


def values(output: str, key: str) -> list[str]:
    return [str(line[key]) for line in metrics(output, key)]


def check_trained(output: str, processes: int) -> None:
    """Hold a training against its promise: all processes agree on the parameters, which recognise digits."""
    assert float(values(output, "held_out_accuracy")[-1]) >= 0.95
    hashes = values(output, "parameters_sha256")
    assert (len(hashes), len(set(hashes))) == (processes, 1)


def template(service: Service, **training_input: object) -> Path:
    """A copy of the template in the working directory, whose config has these fields."""
    copy = service.work / "template"
    shutil.copytree(TEMPLATE, copy, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    config = yaml.safe_load((copy / "config.yaml").read_text())
    config["trainingInput"] |= training_input
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    return copy


def run_python(service: Service, *module_and_arguments: str, **environment: str) -> str:
    """The output of a module of the template in a fresh process, without the service."""
    done = subprocess.run(
        [sys.executable, "-m", *module_and_arguments],
        cwd=TEMPLATE,
        env={**service.environment, **environment},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def predict(service: Service, job_dir: str, **environment: str) -> None:
    """Hold ten predictions of the template's model against their labels."""
    printed = run_python(service, "trainer.task", "--job-dir", job_dir, "--predict", "10", **environment)
    pairs = [line.split("predicted ")[1].split(", is ") for line in printed.splitlines()]
    assert len(pairs) == 10
    assert sum(predicted == label for predicted, label in pairs) >= 9


def test_quickstart_on_chief_and_worker_succeeds_with_a_model_that_predicts(service: Service) -> None:
    config = str(REPOSITORY / "configs" / "quickstart.yaml")
    package = str(TEMPLATE / "trainer")
    output = service.train("quickstart", "--config", config, "--package-path", package, "--", "--epochs", "5")
    assert service.state("quickstart") == "SUCCEEDED"
    check_trained(output, 2)
    assert "master-replica-0" in output
    assert "worker-replica-0" in output
    job_dir = service.job_dir("quickstart")
    assert job_dir.is_dir()
    assert not list(job_dir.glob("workertemp*"))
    predict(service, str(job_dir))


@pytest.mark.long
def test_study_of_the_example_config_has_the_templates_metric_and_a_job_dir_for_each_trial(service: Service) -> None:
    config = yaml.safe_load((REPOSITORY / "configs" / "tuning.yaml").read_text())
    config["trainingInput"]["hyperparameters"] |= {"maxTrials": 2, "hyperparameterMetricTag": "val_accuracy"}
    (service.work / "tuning.yaml").write_text(yaml.safe_dump(config))
    output = service.train("study", "--config", "tuning.yaml", "--package-path", LIBRARY)
    assert "Best of 2 trials" in output
    assert service.state("study") == "SUCCEEDED"
    for trial in json.loads(service.ok("jobs", "trials", "study", "-o", "json")):
        log = service.ok("jobs", "stream-logs", f"study/{trial['number']}", "--no-follow")
        held_out = float(values(log, "held_out_accuracy")[-1])
        assert abs(trial["final"]["value"] - held_out) < 1e-5
        assert (service.job_dir("study") / str(trial["number"]) / "model").is_dir()
