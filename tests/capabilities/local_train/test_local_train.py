"""`trainyard local train`: TF_CONFIG, job-dir and exit code, alone and distributed; and flags of gcloud."""

import json
import re
from pathlib import Path

import pytest

from trainyard_cli.commands.tree import trainyard
from trainyard_cli.main import run

PROGRAM = """
import json, os, sys, time
config = json.loads(os.environ["TF_CONFIG"])
print(json.dumps({"config": config, "args": sys.argv[1:], "cwd": os.getcwd()}), flush=True)
if config["task"].get("type") not in ("chief", None):
    time.sleep(1000)
sys.exit(7)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    directory = tmp_path / "trainer"
    directory.mkdir()
    (directory / "__init__.py").touch()
    (directory / "task.py").write_text(PROGRAM)
    return directory


def local_train(*words: str) -> int:
    return run(trainyard, "trainyard", ["local", "train", *words])


def test_program_alone_gives_its_exit_code(package: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = ("--module-name", "trainer.task", "--package-path", str(package), "--job-dir", "out")
    assert local_train(*given, "--", "--epochs", "5") == 7
    printed = json.loads(capfd.readouterr().out)
    assert printed == {
        "config": {"job": {"job_name": "trainer.task", "args": ["--epochs", "5", "--job-dir", "out"]}, "task": {},
         "cluster": {}, "environment": "cloud"},
        "args": ["--epochs", "5", "--job-dir", "out"],
        "cwd": str(package.parent),
    }  # fmt: skip


def test_replicas_share_a_cluster_and_end_with_the_chief(package: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = ("--module-name", "trainer.task", "--package-path", str(package), "--distributed", "-q")
    counts = ("--worker-count", "1", "--parameter-server-count", "1", "--evaluator-count", "1")
    assert local_train(*given, *counts, "--start-port", "30000", "--verbosity", "info") == 7
    lines = dict(re.findall(r"^(\w+-\d): (.*)$", capfd.readouterr().out, re.MULTILINE))
    chief = json.loads(lines["chief-0"])["config"]
    assert chief["cluster"] == {"chief": ["localhost:30000"], "ps": ["localhost:30001"], "worker": ["localhost:30002"]}
    assert chief["task"] == {"type": "chief", "index": 0}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--module-name", "other.task"), "it would be trainer.MODULE"),
        (("--module-name", "trainer.task", "--distributed", "--start-port", "65535"), "the last is 65535"),
    ],
)
def test_what_cannot_run_is_said(
    package: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert local_train(*words, "--package-path", str(package)) == 1
    assert says in capfd.readouterr().err


def test_prediction_is_refused_in_a_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["jobs", "submit", "prediction", "a", "--model", "m", "--input-paths", "gs://b/*"]
    assert run(trainyard, "trainyard", words) == 1
    assert "Batch prediction is not offered here" in capfd.readouterr().err
