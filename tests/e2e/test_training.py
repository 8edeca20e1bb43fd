"""Training with the template and with the library of trainers, submitted as in their READMEs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

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


NARROW = '''
"""The trainer with a narrow ResNet for small pictures. While the file exists, it kills a worker after a checkpoint."""
import dataclasses, json, os, pathlib, signal, sys, time

os.environ |= {{"JAX_COMPILATION_CACHE_DIR": {cache!r}, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}}
from trainyard_trainer import task
from trainyard_trainer.training import train
from trainyard_trainer.models import model
from trainyard_trainer.models.resnet import ResNet
from trainyard_trainer.output.saving import Saver

KILL, READ = pathlib.Path({kill!r}), train.read
TASK = json.loads(os.environ["TF_CONFIG"])["task"]

def read(*args):
    for number, batch in enumerate(READ(*args)):
        if number == 3 and TASK == {{"type": "worker", "index": 0}} and KILL.exists():
            job_dir = sys.argv[sys.argv.index("--job-dir") + 1]
            while not Saver(job_dir, 0, 1).checkpoints():
                time.sleep(0.1)
            KILL.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch

model.MODELS["resnet50"] = dataclasses.replace(
    model.MODELS["resnet50"],
    make=lambda classes, dtype: ResNet(classes, blocks=(1,), channels=2, dtype=dtype),
    input_shape=(16, 16, 3),
)
train.read = read
task.main()
'''


def write_photos(folder: Path) -> Path:
    """JPEG files of 80 pictures of two classes, each of another size."""
    random = np.random.default_rng(0)
    for label, axis in (("stripes", 0), ("waves", 1)):
        (folder / label).mkdir(parents=True)
        for number in range(40):
            shape = tuple(random.integers(20, 60, 2).tolist())
            pixels = 127 + 120 * np.sin(np.indices(shape)[axis] * random.uniform(0.4, 0.6))
            Image.fromarray(pixels.astype(np.uint8)).convert("RGB").save(folder / label / f"{number}.jpg")
    return folder


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
def test_resnet_on_photos_with_three_workers_of_which_one_is_killed_ends_as_if_undisturbed(service: Service) -> None:
    """TFRecord shards of JPEGs of mixed sizes on gs://, and one worker on a folder of them; checkpoints on gs://."""
    copy = template(service)
    kill = service.work / "kill"
    (copy / "trainer" / "narrow.py").write_text(NARROW.format(kill=str(kill), cache=str(service.work / "xla")))
    config = yaml.safe_load((copy / "config.yaml").read_text())
    for workers in (1, 3):
        config["trainingInput"] |= {"workerCount": workers, "pythonModule": "trainer.narrow"}
        (copy / f"{workers}.yaml").write_text(yaml.safe_dump(config))
    photos = write_photos(service.work / "photos")
    flags = (
        "--model=resnet50", "--epochs=1", "--batch-size=4", "--augment=crop,flip", "--checkpoint-every=2",
    )  # fmt: skip

    def trained(job: str, data: str, workers: int = 3) -> tuple[str, list[int]]:
        """The parameters that all processes agree on, and the steps at which the chief began."""
        job_dir = f"gs://models/{job}"
        output = service.train(
            job, "--config", f"{workers}.yaml", "--job-dir", job_dir, "--", *flags, "--data", data, cwd=copy
        )  # fmt: skip
        hashes = set(values(output, "parameters_sha256"))
        assert len(hashes) == 1, output
        begun = [int(str(line["step"])) for line in metrics(output, "event") if line["event"] == "begin"]
        return hashes.pop(), begun

    kill.touch()
    _, begun = trained("folder", str(photos), workers=1)
    assert (kill.exists(), len(set(begun))) == (False, 2), "the second run resumes from a checkpoint of the first"

    environment = json.loads(service.ok("jobs", "explain", "folder", "-o", "json"))["environment"]
    emulator = {"STORAGE_EMULATOR_HOST": environment["STORAGE_EMULATOR_HOST"]}
    shards = "gs://models/shards-of-photos"
    convert = ("trainyard_trainer.files", "convert", str(photos), "--to", "tfrecord", "--shards", "4", shards)
    assert run_python(service, *convert, **emulator).count("tfrecord-") == 4
    undisturbed, begun = trained("shards", shards)
    assert set(begun) == {0}
    kill.touch()
    disturbed, begun = trained("shards2", shards)
    assert (kill.exists(), len(set(begun))) == (False, 2)
    assert disturbed == undisturbed
    photo = next(photos.rglob("*.jpg"))
    predicted = run_python(
        service, "trainyard_trainer.predict", "--model", "gs://models/shards2/model", str(photo), **emulator
    )
    assert json.loads(predicted)["label"] in ("stripes", "waves")


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
