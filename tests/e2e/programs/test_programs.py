"""Programs as people have them (tests/programs), each unchanged as a chief and a worker."""

from typing import Any

import pytest

from e2e.harness import REPOSITORY, Service, local
from trainyard_protocol.answers.log_views import LogEntry

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
    assert states == {**dict.fromkeys((*CURVES, "jax_distributed.py"), "SUCCEEDED"), "fails.py": "FAILED"}
    assert "process 0 of 2: the sum is 2" in printed(service, "jax_distributed.py")["master-replica-0"]
    assert "ValueError: image size 50 is not a multiple of 32" in service.value("fails", "errorMessage")
    assert {program: curves(service, program) for program in CURVES} == CURVES
    shell = printed(service, "train.sh")
    assert (shell["master-replica-0"][0], shell["worker-replica-0"][0]) == ("rank 0 of 2", "rank 1 of 2")
    assert printed(service, "notebook.py")["master-replica-0"][-1] == "from a cell"
    assert {path.name for path in service.job_dir("train").joinpath("model").iterdir()} == {"rank-0", "rank-1"}
    assert service.job_dir("events").joinpath("logs", "0").is_dir()


LEAVES_FILES = """
import pathlib, sys
print("params:", open("configs/params.yaml").read())
print("arguments:", sys.argv[1:])
open("outputs/model.npz", "w").write("weights")
with open("configs/params.yaml", "a") as params:
    params.write(", momentum: 0.9")
with open("huge", "wb") as huge:
    huge.truncate(1 << 31)
"""


def files(service: Service, job: str, path: str = "") -> list[str]:
    """All that the page Files shows."""
    with service.client() as client:
        entries = list(client.files(job, path))
    names = (f"{path}/{entry.name}".lstrip("/") for entry in entries)
    nested = (
        files(service, job, name) if entry.kind == "directory" else [name]
        for name, entry in zip(names, entries, strict=True)
    )
    return sorted(name for names in nested for name in names)


@pytest.mark.parametrize("job_dir", ["", "out", "gs://models/run"])
def test_files_that_a_script_leaves_in_its_directory_are_in_the_jobs(service: Service, job_dir: str) -> None:
    job = f"leaves_files{len(job_dir)}"
    source = service.work / job
    (source / "configs").mkdir(parents=True)
    (source / "outputs").mkdir()
    (source / "train.py").write_text(LEAVES_FILES)
    (source / "configs" / "params.yaml").write_text("lr: 0.1")
    config = str(service.config(pythonModule=None, **local(workers=1)))
    given = ("--job-dir", job_dir) if job_dir else ()
    words = ("jobs", "submit", "training", job, "--config", config, "--package-path", ".", *given)
    submitted = service.run(*words, cwd=source)
    assert submitted.returncode == 0, submitted.stderr
    assert ("gets no argument --job-dir (--pass-job-dir passes it)" in submitted.stderr) == bool(job_dir)
    assert service.wait_for(job, "SUCCEEDED", "FAILED") == "SUCCEEDED"
    assert [name for name in files(service, job) if "master" in name] == [
        "outputs/master-replica-0/configs/params.yaml",
        "outputs/master-replica-0/outputs/model.npz",
    ]
    assert (source / "configs" / "params.yaml").read_text() == "lr: 0.1"
    log = service.log(job)
    assert "params: lr: 0.1\n" in log
    assert "arguments: []\n" in log
    assert "of the working directory lost (huge (2.15 GB)): a replica's may have 1.07 GB and 10000 files" in log
    if job_dir == "out":
        assert (source / "out/outputs/master-replica-0/outputs/model.npz").read_text() == "weights"


def test_missing_file_beside_a_script_is_said_at_submit_and_named_in_the_verdict(service: Service) -> None:
    (service.work / "configs").mkdir(exist_ok=True)
    (service.work / "configs" / "lonely.yaml").touch()
    (service.work / "lonely.py").write_text("open('configs/lonely.yaml')")
    config = str(service.config(pythonModule=None, **local()))
    words = ("jobs", "submit", "training", "lonely", "--config", config, "--package-path", "lonely.py")
    assert "lonely.py:1 names configs/lonely.yaml, which is not sent." in service.run(*words).stderr
    assert service.wait_for("lonely", "SUCCEEDED", "FAILED") == "FAILED"
    verdict = service.value("lonely", "errorMessage")
    assert "FileNotFoundError: [Errno 2] No such file or directory: 'configs/lonely.yaml'" in verdict
