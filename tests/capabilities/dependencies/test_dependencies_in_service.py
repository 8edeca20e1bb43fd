"""Jobs that start after others, in a real service: as processes, and in containers of a real engine."""

import json

import pytest

from beds.engines import Engine
from e2e.harness import Service, local
from trainyard import Client

TRAIN = """
import os, pathlib, sys
for step in range(1, 4):
    print(f"step={step} val_loss={1 / step:.3f}")
pathlib.Path(os.environ["TRAINYARD_JOB_DIR"], "model.txt").write_text("the model")
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""
EVALUATE = """
import os, pathlib, sys
print("read", pathlib.Path(sys.argv[1], "model.txt").read_text(), "of", os.environ["TRAINYARD_AFTER_JOB_DIR"])
"""


def test_pipeline_of_processes_has_one_exit_code(service: Service) -> None:
    """Train, then evaluate where the metric is good; a chain whose middle fails; a job for any end."""
    service.use_project("pipeline")
    for name, source in (("train", TRAIN), ("evaluate", EVALUATE)):
        service.program(source, name)
        service.config(f"{name}.yaml", **local(pythonModule=f"{name}.task"))

    def submit(job: str, program: str, *words: str) -> None:
        flags = ("--config", f"{program}.yaml", "--package-path", program)
        service.ok("jobs", "submit", "training", job, *flags, *words)

    placeholder = "{after.job_dir}"
    submit("first", "train")
    submit("report", "evaluate", "--after", "first", "--", placeholder)
    submit("good", "evaluate", "--after", "first:metrics.val_loss<0.4", "--", placeholder)
    done = service.run("jobs", "wait", "first", "--all", "--timeout", "3m")
    assert (done.returncode, done.stderr.count("] succeeded after")) == (0, 3), done.stderr
    directory = service.job_dir("first")
    assert f"read the model of {directory}" in service.log("report")
    environment = json.loads(service.ok("jobs", "explain", "report", "-o", "json"))["environment"]
    assert environment["TRAINYARD_AFTER_JOB_DIR"] == str(directory)

    submit("fails", "train", "--after", "report,good", "--", "3")
    submit("never", "evaluate", "--after", "fails", "--", placeholder)
    submit("anyhow", "evaluate", "--after", "fails:ended", "--", placeholder)
    done = service.run("jobs", "wait", "fails", "--all", "--timeout", "3m")
    assert done.returncode == 3
    assert [service.state(job) for job in ("fails", "never", "anyhow")] == ["FAILED", "CANCELLED", "SUCCEEDED"]
    assert "because fails ended as FAILED" in service.value("never", "errorMessage")
    refused = service.run("jobs", "submit", "training", "x", "--config", "train.yaml", "--after", "firts")
    assert refused.returncode == 1
    assert "--after: The project pipeline has no job firts." in refused.stderr

    with Client(state_dir=service.state_dir, project="pipeline") as client:
        given = {"config": service.work / "evaluate.yaml", "package_path": service.work / "evaluate"}
        job = client.submit(**given, after=[client.job("first"), "anyhow:ended"], args=[placeholder])  # type: ignore[arg-type]
        job.wait(timeout=180, check=True)
        assert job.detail().job["trainingInput"]["after"] == ["first", "anyhow:ended"]


@pytest.mark.usefixtures("nothing_left")
def test_container_reads_the_directory_of_the_job_before_it(containers: Service, engine: Engine) -> None:
    def submit(job: str, script: str, *arguments: str, after: str = "") -> None:
        master = {"imageUri": engine.base_image, "containerCommand": ["python3", "-c", script, *arguments]}
        gang = {"scaleTier": "CUSTOM", "masterType": "small", "pythonModule": None}
        config = containers.config(f"{job}.yaml", **gang, masterConfig=master, after=[after] if after else None)
        containers.ok("jobs", "submit", "training", job, "--config", str(config))

    submit("before", TRAIN)
    submit("after", EVALUATE, "{after.job_dir}", after="before")
    writes = "import os; open(os.environ['TRAINYARD_AFTER_JOB_DIR'] + '/other.txt', 'w')"
    submit("writes", writes, after="before")
    done = containers.run("jobs", "wait", "before", "--all", "--timeout", "3m")
    assert "read the model" in containers.log("after")
    assert "Read-only file system" in containers.log("writes")
    assert done.returncode == 1
