"""Programs as people have them (tests/programs), each unchanged as a chief and a worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.harness import REPOSITORY, Service, local, started
from trainyard_protocol.views import LogEntry

PROGRAMS = REPOSITORY / "tests" / "programs"
CURVES: dict[str, tuple[str, ...]] = {
    "regression.py": ("loss",),
    "train.sh": ("loss",),
    "notebook.py": ("loss",),
    "flat": ("mean",),
    "pinned": ("loss",),
    "key_values.py": ("accuracy", "loss"),
    "events.py": ("train/loss",),
}
FRAMEWORKS: dict[str, tuple[str, ...]] = {
    "keras_digits.py": ("accuracy", "loss", "val_accuracy", "val_loss"),
    "torch_tqdm.py": ("loss",),
}

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def with_frameworks(frameworks_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from started(tmp_path_factory.mktemp("frameworks"), "--python", str(frameworks_python))


def submit(service: Service, *programs: str) -> None:
    """One job for each program, all at once: a chief and a worker."""
    config = service.config(pythonModule=None, **local(workers=1))
    for program in programs:
        service.ok(
            *("jobs", "submit", "training", name(program)),
            *("--config", str(config), "--package-path", str(PROGRAMS / program)),
        )


def name(program: str) -> str:
    return program.partition(".")[0]


def printed(service: Service, program: str) -> dict[str, list[str]]:
    """The lines of each replica."""
    lines: dict[str, list[str]] = {}
    with service.client() as client:
        for event in client.logs(name(program), follow=False):
            if isinstance(event, LogEntry):
                lines.setdefault(event.task, []).append(event.text)
    return lines


def curves(service: Service, program: str) -> tuple[str, ...]:
    """The names of the chief's curves. The worker has the same, as far as it came before the chief ended the job."""
    with service.client() as client:
        found = client.metrics(name(program), points=100).metrics
    names: dict[str, list[str]] = {}
    for curve in found:
        names.setdefault(curve.task, []).append(curve.name)
        assert curve.task != "master-replica-0" or len(curve.values) > 1
    assert set(names.get("worker-replica-0", ())) <= set(names["master-replica-0"])
    return tuple(sorted(names["master-replica-0"]))


def test_programs_run_unchanged_on_two_replicas_with_curves(service: Service) -> None:
    submit(service, *CURVES, "fails.py")
    states: dict[str, Any] = {
        program: service.wait_for(name(program), "SUCCEEDED", "FAILED", timeout=400)
        for program in (*CURVES, "fails.py")
    }
    assert states == {**dict.fromkeys(CURVES, "SUCCEEDED"), "fails.py": "FAILED"}
    assert "ValueError: image size 50 is not a multiple of 32" in service.value("fails", "errorMessage")
    assert {program: curves(service, program) for program in CURVES} == CURVES
    shell = printed(service, "train.sh")
    assert (shell["master-replica-0"][0], shell["worker-replica-0"][0]) == ("rank 0 of 2", "rank 1 of 2")
    assert printed(service, "notebook.py")["master-replica-0"][-1] == "from a cell"
    assert {path.name for path in service.job_dir("train").joinpath("model").iterdir()} == {
        "rank-0",
        "rank-1",
    }
    assert service.job_dir("events").joinpath("logs", "0").is_dir()


@pytest.mark.frameworks
def test_keras_and_torch_programs_run_unchanged_on_two_replicas_with_curves(with_frameworks: Service) -> None:
    submit(with_frameworks, *FRAMEWORKS)
    states = {
        program: with_frameworks.wait_for(name(program), "SUCCEEDED", "FAILED", timeout=600)
        for program in FRAMEWORKS
    }
    assert states == dict.fromkeys(FRAMEWORKS, "SUCCEEDED"), printed(with_frameworks, "keras_digits.py")
    assert {program: curves(with_frameworks, program) for program in FRAMEWORKS} == FRAMEWORKS
