"""Launch of jobs as processes, without and with a package, against Popen, Ray Jobs and `uv pip install`."""

import os
import shutil
import subprocess
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path

import httpx

from benchmarks.jobs.ray_cluster import ray
from benchmarks.jobs.service import PRINT_TIME, REPLICAS, JobService, running, seconds
from benchmarks.jobs.tools import UV, installed
from benchmarks.rows import Row, Samples, interleaved
from trainyard_cli.submission import packaging

_ROUNDS, _FEWER_ROUNDS, _QUICK = 15, 11, 3
_MODULE = "timeit"
_ARGUMENTS = ["-n1", "-r1", PRINT_TIME]
"""A program that every Python has."""

_PLAIN = {"pythonModule": _MODULE, "args": _ARGUMENTS}
_REQUIREMENT = "python-dateutil==2.9.0.post0"  # brings six
_serials = count()


def _popen() -> float:
    """Seconds to the last first instruction of REPLICAS processes."""
    began = time.time_ns()
    command = [sys.executable, "-m", _MODULE, *_ARGUMENTS]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(REPLICAS)]
    return seconds(began, [line for one in started for line in one.communicate()[0].splitlines()])


def _against_popen(quick: bool) -> Samples:
    with running("--runtime", "process") as service:
        return interleaved(
            partial(service.launch, _PLAIN), _popen, _QUICK if quick else _ROUNDS, "s", is_difference=True
        )


def _against_ray(quick: bool) -> Samples:
    with running("--runtime", "process") as service, ray() as client:
        return interleaved(partial(service.launch, _PLAIN), Submit(client), _QUICK if quick else _ROUNDS, "s")


def _package_seen(quick: bool) -> Samples:
    with running("--runtime", "process") as service:
        job = _packaged(service, "the same content")
        return interleaved(
            partial(service.launch, job), _popen, _QUICK if quick else _ROUNDS, "s", is_difference=True
        )


def _package_new(quick: bool) -> Samples:
    """Each round of the job has a package that nobody has seen, and so has each of uv's. Their wheels are cached."""
    uv = installed(UV) / "uv"
    with running("--runtime", "process", PATH=f"{uv.parent}:{os.environ['PATH']}") as service:

        def launch() -> float:
            return service.launch(_packaged(service, f"content {next(_serials)}", _REQUIREMENT))

        return interleaved(
            launch, partial(_uv_install, uv, service.directory), _QUICK if quick else _FEWER_ROUNDS, "s"
        )


def _packaged(service: JobService, content: str, *requirements: str) -> dict[str, object]:
    """The training input of a package with that content, which is uploaded."""
    with packaging.build(_package(service.directory, content), requirements) as archive:
        staged = service.client.upload(archive.path)
    return {"pythonModule": "stamped.task", "packageUris": [staged.uri]}


def _package(directory: Path, content: str) -> Path:
    package = directory / "stamped"
    package.mkdir(exist_ok=True)
    (package / "task.py").write_text(f"{PRINT_TIME}\n# {content}\n", encoding="utf-8")
    return package


def _uv_install(uv: Path, directory: Path) -> float:
    """Seconds of an installation into a new environment."""
    environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    with packaging.build(_package(directory, f"content {next(_serials)}"), [_REQUIREMENT]) as archive:
        venv = directory / "of-uv"
        shutil.rmtree(venv, ignore_errors=True)
        began = time.perf_counter()
        for command in (
            ("venv", "--python", sys.executable, str(venv)),
            ("pip", "install", "--python", str(venv), str(archive.path)),
        ):
            subprocess.run([uv, *command, "--quiet"], check=True, env=environment)
        return time.perf_counter() - began


class Submit:
    """Seconds from the request of a job of Ray to the first instruction of its entry point."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def __call__(self) -> float:
        entrypoint = f"{sys.executable} -m {_MODULE} -n1 -r1 '{PRINT_TIME}'"
        began = time.time_ns()
        answer = self._client.post("/api/jobs/", json={"entrypoint": entrypoint}).raise_for_status()
        job = f"/api/jobs/{answer.json()['submission_id']}"
        while self._client.get(job).raise_for_status().json()["status"] in ("PENDING", "RUNNING"):
            time.sleep(0.2)
        logs = self._client.get(f"{job}/logs").raise_for_status().json()["logs"]
        return seconds(began, logs.splitlines(), replicas=1)


_FLOOR = f"{REPLICAS} x Popen"
_FROM = "request to the last first instruction"
_OF_A_LAUNCH = "the start of a supervisor (Python) for each process, and three durable writes before it"

ROWS = (
    Row(
        "launch-processes",
        f"a job of {REPLICAS} processes, no package: {_FROM}",
        _FLOOR,
        0.3,
        _against_popen,
        bound=_OF_A_LAUNCH,
    ),
    Row(
        "launch-ray",
        f"a job of {REPLICAS} processes, no package: {_FROM}",
        "Ray Jobs, one entry point",
        0.25,
        _against_ray,
        bound=_OF_A_LAUNCH,
    ),
    Row(
        "launch-package-seen",
        f"a package job of {REPLICAS} processes, its content seen before: {_FROM}",
        _FLOOR,
        0.3,
        _package_seen,
        bound=_OF_A_LAUNCH,
    ),
    Row(
        "launch-package-new",
        f"a package job of {REPLICAS} processes, its content new, a missing dependency, wheels cached: {_FROM}",
        "`uv venv` and `uv pip install` of it",
        1.5,
        _package_new,
        bound="pip, which takes half of it: started for the missing dependency, it loads itself and asks the index. uv "
        "takes what the job brings, and not this: it knows neither pip's index nor the packages of the agent's Python",
    ),
)
