"""Programs that print and use nothing of ours (tests/programs/printed), unchanged: their curves have their own numbers.

Each program also writes files, as its author would. The test runs it by hand and compares the curves of a job with what
is in the files.
"""

import csv
import json
import math
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from beds.waiting import until
from e2e.harness import Service, started
from e2e.programs.test_programs import PROGRAMS

PRINTED = PROGRAMS / "printed"

pytestmark = [pytest.mark.e2e, pytest.mark.frameworks]

Curves = Mapping[str, Mapping[int, float]]
"""Values by name and step."""


def of_json(path: Path) -> Any:
    return json.loads(path.read_text())


def of_csv(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def transformers(directory: Path) -> Curves:
    """Epochs are at their thousandths: the lines have no step."""
    curves: dict[str, dict[int, float]] = {}
    for entry in of_json(directory / "out" / "trainer_state.json")["log_history"]:
        for name in entry.keys() & {"loss", "eval_loss", "learning_rate", "grad_norm", "train_loss"}:
            curves.setdefault(name, {})[round(entry["epoch"] * 1000)] = entry[name]
    return curves


def lightning(directory: Path) -> Curves:
    """Rich draws a bar on a terminal alone; into a pipe it prints its last state."""
    step, loss = of_csv(directory / "losses.csv")[-1]
    assert step == "24"
    return {"train_loss": {24: float(loss)}}


def keras(directory: Path) -> Curves:
    return {
        name: {8 * epoch: value for epoch, value in enumerate(values, 1)}
        for name, values in of_json(directory / "history.json").items()
    }


def xgboost(directory: Path) -> Curves:
    return {
        f"{data}-{name}": dict(enumerate(values))
        for data, metrics in of_json(directory / "results.json").items()
        for name, values in metrics.items()
    }


def lightgbm(directory: Path) -> Curves:
    metrics = of_json(directory / "results.json")["valid_0"]
    return {f"valid_0_{name}": {at: values[at - 1] for at in range(5, 41, 5)} for name, values in metrics.items()}


def sklearn(directory: Path) -> Curves:
    scores = of_json(directory / "scores.json")
    return {"test_accuracy": {0: scores["accuracy"]}, "f1_score": {0: scores["f1"]}, "roc_auc": {0: scores["auc"]}}


def mnist(directory: Path) -> Curves:
    """The results of each test are at the last step before it."""
    curves: dict[str, dict[int, float]] = {"loss": {}, "test_average_loss": {}, "test_accuracy": {}}
    for kind, epoch, sample, value in of_csv(directory / "log.csv"):
        start = 1920 * (int(epoch) - 1)
        if kind == "train":
            curves["loss"][start + int(sample)] = float(value)
        else:
            curves["test_average_loss" if kind == "loss" else "test_accuracy"][start + 1280] = float(value)
    return curves


def tqdm(directory: Path) -> Curves:
    """The bar counts few of these fast steps. At the end of each epoch it has them all."""
    losses = of_json(directory / "losses.json")
    return {"loss": {step: losses[step - 1] for step in (20, 40, 60)}}


def argparse_script(directory: Path) -> Curves:
    history = of_json(directory / "history.json")
    losses = dict(enumerate(history["loss"], 1))
    return {"loss": losses, "rmse": {5: history["rmse"]}, "r2_score": {5: history["r2"]}}


TRUE: dict[str, Callable[[Path], Curves]] = {
    "hf_trainer.py": transformers,
    "lightning_bar.py": lightning,
    "keras_fit.py": keras,
    "xgboost_rounds.py": xgboost,
    "lightgbm_rounds.py": lightgbm,
    "sklearn_scores.py": sklearn,
    "torch_mnist.py": mnist,
    "tqdm_postfix.py": tqdm,
    "argparse_script.py": argparse_script,
}
SOME_OF_ALL = {"keras_fit.py", "tqdm_postfix.py"}
"""Programs whose bars show further steps, at which their files have no values."""


@pytest.fixture(scope="module")
def service(frameworks_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from started(tmp_path_factory.mktemp("printed"), "--python", str(frameworks_python))


@pytest.mark.parametrize("program", TRUE)
def test_the_curves_of_a_program_that_only_prints_have_its_own_numbers(
    service: Service, frameworks_python: Path, program: str, tmp_path: Path
) -> None:
    job = program.partition(".")[0]
    service.ok("jobs", "submit", "training", job, "--package-path", str(PRINTED / program))
    by_hand = [str(frameworks_python), str(PRINTED / program)]
    done = subprocess.run(by_hand, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=900)
    assert done.returncode == 0, done.stderr
    true = TRUE[program](tmp_path)
    assert service.wait_for(job, "SUCCEEDED", "FAILED", timeout=900) == "SUCCEEDED", service.log(job)
    until(lambda: true.keys() <= drawn(service, job).keys(), lambda: str(drawn(service, job)))
    curves = drawn(service, job)
    wrong = {
        (name, step): (value, curves[name].get(step))
        for name, values in true.items()
        for step, value in values.items()
        if not math.isclose(curves[name].get(step, math.nan), value, rel_tol=5e-3, abs_tol=6e-4)
    }
    assert not wrong
    if program not in SOME_OF_ALL:
        assert {name: sorted(curves[name]) for name in true} == {name: sorted(values) for name, values in true.items()}


def drawn(service: Service, job: str) -> dict[str, dict[int, float]]:
    """The curves on the page of a job."""
    with service.client() as client:
        found = client.metrics(job, points=1000).metrics
    return {curve.name: dict(zip(curve.steps, map(float, curve.values), strict=True)) for curve in found}
