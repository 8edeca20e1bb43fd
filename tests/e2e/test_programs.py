"""Programs as people have them (tests/programs), each unchanged as a chief and a worker."""

from typing import Any

import pytest

from e2e.harness import REPOSITORY, Service, local
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

pytestmark = pytest.mark.e2e


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
    submit(service, *CURVES, "fails.py", "jax_distributed.py")
    states: dict[str, Any] = {
        program: service.wait_for(name(program), "SUCCEEDED", "FAILED", timeout=400)
        for program in (*CURVES, "fails.py", "jax_distributed.py")
    }
    assert states == {
        **dict.fromkeys((*CURVES, "jax_distributed.py"), "SUCCEEDED"),
        "fails.py": "FAILED",
    }
    assert "process 0 of 2: the sum is 2" in printed(service, "jax_distributed.py")["master-replica-0"]
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
