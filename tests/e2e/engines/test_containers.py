"""Jobs in containers: the installed program and a real engine."""

import json
import re
import socket
import subprocess

import pytest

from beds.engines import Engine
from e2e.harness import Service, stop_script_that_keeps_files

pytestmark = pytest.mark.usefixtures("nothing_left")

SHOW = """
import json, os, socket, sys
print("TF_CONFIG", os.environ["TF_CONFIG"])
print("arguments", json.dumps(sys.argv[1:]))
for hosts in json.loads(os.environ["TF_CONFIG"])["cluster"].values():
    for host in hosts:
        print("found", socket.gethostbyname(host.rpartition(":")[0]) != "")
"""


MEET = """
import json, os, socket, sys, time, urllib.error, urllib.request
own, other = sys.argv[1:3]
storage = os.environ["STORAGE_EMULATOR_HOST"]
def call(path, data=None, kind="application/json"):
    request = urllib.request.Request(storage + path, data, {"Content-Type": kind})
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code
call("/storage/v1/b?project=p", json.dumps({"name": "meeting"}).encode())
call("/upload/storage/v1/b/meeting/o?uploadType=media&name=" + own, b"here", "text/plain")
until = time.monotonic() + 60
while call("/storage/v1/b/meeting/o/" + other) != 200:
    assert time.monotonic() < until, "the other job does not run"
    time.sleep(0.1)
print("met", json.dumps({"host": socket.gethostname(), "cpus": list(os.sched_getaffinity(0))}))
metric = {"run_id": os.environ["MLFLOW_RUN_ID"], "key": "meetings", "value": 7, "step": 1, "timestamp": 1}
tracking = os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/runs/log-metric"
token = {"Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"], "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(tracking, json.dumps(metric).encode(), token))
"""
"""A program that ends when it finds on gs:// that another job runs at the same time, and logs a metric by MLflow."""


def image_job(service: Service, engine: Engine, script: str, **fields: object) -> str:
    gang = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "pythonModule": None}
    master = {"imageUri": engine.base_image, "containerCommand": ["python3", "-c"], "containerArgs": [script]}
    return str(service.config("image.yaml", **{**gang, "masterConfig": master, **fields}))


def test_package_runs_in_the_image_that_the_job_brings_whatever_its_entry_point(
    containers: Service, engine: Engine
) -> None:
    """A config for AI Platform's pre-built PyTorch containers."""
    dockerfile = f'FROM {engine.base_image}\nRUN touch /of-the-image\nENTRYPOINT ["/bin/false"]\n'
    name = engine.build("trainyard-tests/prebuilt:1", dockerfile)
    program = "import os, sys; print('in the image:', os.path.exists('/of-the-image'), *sys.argv[1:])"
    containers.program(program)
    gang = {"scaleTier": "CUSTOM", "masterType": "small"}
    config = str(containers.config("prebuilt.yaml", **gang, masterConfig={"imageUri": name}))
    flags = ("--config", config, "--package-path", "prog", "--job-dir", "gs://here/out")
    containers.ok("jobs", "submit", "training", "prebuilt", *flags, "--", "--epochs", "2")
    containers.wait_for("prebuilt", "SUCCEEDED")
    assert "in the image: True --epochs 2 --job-dir gs://here/out" in containers.log("prebuilt")


def test_package_job_is_a_process_beside_a_job_in_a_container(containers: Service, engine: Engine) -> None:
    containers.program(MEET)
    package = str(containers.config("package.yaml", scaleTier="CUSTOM", masterType="small"))
    command = ["python3", "-c", MEET, "image", "package"]
    script = {"imageUri": engine.base_image, "containerCommand": command}
    image = image_job(containers, engine, "", masterType="small", masterConfig=script)
    flags = ("--config", package, "--package-path", "prog")
    containers.ok("jobs", "submit", "training", "package", *flags, "--", "package", "image")
    containers.ok("jobs", "submit", "training", "image", "--config", image)
    found = {}
    for job in ("package", "image"):
        containers.wait_for(job, "SUCCEEDED")
        line = next(line for line in containers.log(job).splitlines() if line.startswith("met "))
        found[job] = json.loads(line.removeprefix("met "))
        assert "meetings" in containers.ok("jobs", "metrics", job)
    assert found["package"]["host"] == socket.gethostname()
    assert found["image"]["host"].startswith("cmle-training-master-")
    assert not {*found["package"]["cpus"]} & {*found["image"]["cpus"]}
    assert "Its replicas run as processes: it is a package job." in containers.log("package")
    assert "Its replicas run in containers: the job brings its image." in containers.log("image")
    assert "image jobs run in containers; package jobs as processes." in containers.ok("status")


def test_package_job_runs_in_the_image_of_its_runtime(containers: Service) -> None:
    containers.program(
        """
        import platform, sys
        from prog import helper
        print(helper.WORD, sys.prefix, platform.freedesktop_os_release()["ID"])
        open("model.keras", "w").close()
        """
    ).joinpath("helper.py").write_text("WORD = 'packed'\n")
    config = containers.config(scaleTier="BASIC", runtimeVersion="2.11", pythonVersion="3.7")
    containers.train("packaged", "--config", str(config), "--package-path", "prog")
    log = containers.log("packaged")
    assert "packed /opt/trainyard/environment debian" in log
    assert "WARNING: trainyard: the working directory is removed with model.keras: " in log


def test_script_in_a_container_is_stopped_and_its_files_are_kept(containers: Service) -> None:
    config = containers.config(scaleTier="BASIC", runtimeVersion="2.11", pythonModule=None)
    stop_script_that_keeps_files(containers, "keeps_files", config)
    kept = containers.job_dir("keeps_files") / "outputs" / "master-replica-0" / "outputs" / "model"
    assert kept.read_text() == "lr: 0.1"


def test_custom_image_gets_the_tf_config_that_explain_prints(containers: Service, engine: Engine) -> None:
    config = image_job(
        containers,
        engine,
        SHOW,
        workerType="n1-standard-4",
        workerCount=1,
        workerConfig={"containerCommand": ["python3", "-c"], "containerArgs": [SHOW]},
        useChiefInTfConfig=True,
    )
    containers.train("explained", "--config", config)
    for task in ("master-replica-0", "worker-replica-0"):
        printed = containers.ok("jobs", "stream-logs", "explained", "--task", task)
        explained = json.loads(containers.ok("jobs", "explain", "explained", task, "-o", "json"))
        assert f"TF_CONFIG {explained['environment']['TF_CONFIG']}\n" in printed
        assert printed.count("found True") == 2
    assert '"chief": ["cmle-training-master-' in printed


def test_worker_image_defaults_to_the_masters_and_the_service_stops_it(containers: Service, engine: Engine) -> None:
    forever = "import time; print('up', flush=True); time.sleep(1000)"
    config = image_job(
        containers,
        engine,
        "import time; time.sleep(2)",
        workerType="n1-standard-4",
        workerCount=1,
        workerConfig={"containerCommand": ["python3", "-c"], "containerArgs": [forever]},
    )
    printed = containers.train("defaulted", "--config", config)
    assert "The replica worker 0 was stopped." in printed
    assert "killed" not in printed


def test_out_of_memory_is_reported_with_the_limit(containers: Service, engine: Engine) -> None:
    script = "b = []\nwhile True: b.append(bytearray(1 << 24))"
    config = image_job(containers, engine, script, masterType="small")
    done = containers.run("jobs", "submit", "training", "hungry", "--config", config, "--stream-logs")
    assert done.returncode == 137, done.stderr
    assert containers.value("hungry", "errorMessage").startswith(
        "The replica master 0 ran out-of-memory and exited with a non-zero status of 9(SIGKILL). "
        "Its memory limit is 0.2 GB."
    )


def test_down_leaves_no_container(containers: Service, engine: Engine) -> None:
    config = image_job(containers, engine, "import time; time.sleep(1000)")
    containers.ok("jobs", "submit", "training", "interrupted", "--config", config)
    containers.wait_for("interrupted", "RUNNING")
    containers.ok("down")
    running = subprocess.run(
        ["docker", "ps", "--quiet", "--filter", "label=trainyard.agent"],
        capture_output=True,
        env={**containers.environment, **engine.environment},
        check=True,
    )
    assert running.stdout == b""
    containers.ok("up")
    containers.ok("jobs", "cancel", "interrupted")
    containers.wait_for("interrupted", "CANCELLED")


def test_code_is_synchronised_into_a_container_which_ends_when_it_is_idle(containers: Service, engine: Engine) -> None:
    code = containers.work / "waits"
    code.mkdir()
    (code / "train.py").write_text("print('by the container')\n")
    machine = ("--scale-tier", "custom", "--master-machine-type", "small", "--master-image-uri", engine.base_image)
    done = containers.done("jobs", "dev", "waits", *machine, "--idle", "20s", cwd=code)
    assert "Synchronised 1 files, 1 of them changed: " in done.stderr
    place = re.search(r"changed: (/\S+)$", done.stderr, re.MULTILINE)
    assert place is not None
    run = containers.ok("jobs", "exec", "waits", "--", "python3", f"{place[1]}/train.py")
    assert run == "by the container\n"
    assert containers.wait_for("waits", "SUCCEEDED", "FAILED") == "SUCCEEDED"
    assert "Nothing used it for 20 s: it ends." in containers.log("waits")
