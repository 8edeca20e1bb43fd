"""Launch of jobs as processes, without and with a package, against Popen, Ray Jobs and `uv pip install`."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from benchmarks.rows import Row, Samples, interleaved
from benchmarks.service import PRINT_TIME, REPLICAS, Service, run_code, running, seconds
from benchmarks.tools import ray, wait_for_ray
from trainyard_programs import program_wheel, programs

_PLAIN = run_code(PRINT_TIME)
UV = Path(sys.executable).with_name("uv")
_REQUIREMENT = "python-dateutil==2.9.0.post0"  # brings six
_serials = count()


def _popen() -> float:
    """Seconds to the last first instruction of REPLICAS processes."""
    began = time.time_ns()
    command = [sys.executable, "-m", _PLAIN["pythonModule"], *_PLAIN["args"]]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(REPLICAS)]
    return seconds(began, [line for process in started for line in process.communicate()[0].splitlines()])


def _against_popen(job_on: Callable[[Service], Mapping[str, Any]], quick: bool) -> Samples:
    with running() as service:
        launch = partial(service.launch, job_on(service))
        return interleaved(launch, _popen, 3 if quick else 15, "s", is_difference=True)


def _against_ray(quick: bool) -> Samples:
    with running() as service, ray() as client:
        return interleaved(partial(service.launch, _PLAIN), partial(_by_ray, client), 3 if quick else 15, "s")


_DIES_ONCE = """
import os, signal, time
print(time.time_ns(), flush=True)
died = {died!r}
if os.path.exists(died):
    time.sleep(0.5)
else:
    if os.environ["RANK"] == "1":
        time.sleep(1.0)
        with open(died, "x") as file:
            file.write(str(time.time_ns()))
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
"""
"""A program of a gang, of whose first run a replica is killed once all have begun."""


def _again(quick: bool) -> Samples:
    with running() as service:

        def killed() -> float:
            died = service.directory / f"died-{next(_serials)}"
            lines = [line for line in service.output(run_code(_DIES_ONCE.format(died=str(died)))) if line.isdecimal()]
            return seconds(int(died.read_text()), lines[-REPLICAS:])

        return interleaved(killed, _popen, 2 if quick else 9, "s", is_difference=True)


def _package_new(quick: bool, *, first: bool) -> Samples:
    """Each round of the job has a package that nobody has seen, and so has each of uv's. Their wheels are cached.
    `first`: and nobody has required the same before."""
    with running() as service:

        def launch() -> float:
            number = next(_serials)
            requirements = (_REQUIREMENT, f"six<{1000 + number}") if first else (_REQUIREMENT,)
            return service.launch(_packaged(service, f"content {number}", requirements))

        by_uv = partial(_by_uv, service.directory)
        return interleaved(launch, by_uv, 3 if quick else 11, "s")


def _packaged(service: Service, content: str, requirements: Sequence[str]) -> dict[str, Any]:
    """The training input of a package with that content, which is uploaded."""
    package = _package(service.directory, content, requirements)
    with program_wheel.build(programs.find(package, "stamped.task")) as archive:
        address = service.client.upload(archive.path)
    return {"pythonModule": "stamped.task", "packageUris": [address]}


def _package(directory: Path, content: str, requirements: Sequence[str] = ()) -> Path:
    package = directory / "stamped"
    package.mkdir(exist_ok=True)
    (package / "task.py").write_text(f"{PRINT_TIME}\n# {content}\n", encoding="utf-8")
    (package / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
    return package


def _by_uv(directory: Path) -> float:
    """Seconds of a new environment with the same requirement."""
    (directory / "required.txt").write_text(f"{_REQUIREMENT}\n", encoding="utf-8")
    return uv_install("-r", directory / "required.txt", directory=directory)


def uv_install(*what: str | Path, directory: Path) -> float:
    """Seconds of an installation into a new environment, by the uv that is installed with the agent."""
    environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    venv = directory / "of-uv"
    shutil.rmtree(venv, ignore_errors=True)
    began = time.perf_counter()
    for command in (
        ("venv", "--python", sys.executable, str(venv)),
        ("pip", "install", "--python", str(venv), *map(str, what)),
    ):
        subprocess.run([UV, *command, "--quiet"], check=True, env=environment)
    return time.perf_counter() - began


def _by_ray(client: httpx.Client) -> float:
    """Seconds from the request of a job of Ray to the first instruction of its entry point."""
    entrypoint = shlex.join([sys.executable, "-m", _PLAIN["pythonModule"], *_PLAIN["args"]])
    began = time.time_ns()
    answer = client.post("/api/jobs/", json={"entrypoint": entrypoint}).raise_for_status()
    wait_for_ray(client)
    logs = client.get(f"/api/jobs/{answer.json()['submission_id']}/logs").raise_for_status().json()["logs"]
    return seconds(began, logs.splitlines(), replicas=1)


_NO_PACKAGE = f"a job of {REPLICAS} processes, no package"
_PACKAGE = f"a package job of {REPLICAS} processes"
_FROM = "request to the last first instruction"
_OF_A_LAUNCH = "three durable writes before the supervisors start, which are forked"

ROWS = (
    *(
        Row(
            f"launch-{name}",
            f"{what}: {_FROM}",
            f"{REPLICAS} x Popen",
            0.3,
            partial(_against_popen, job_on),
            bound=_OF_A_LAUNCH,
        )
        for name, what, job_on in (
            ("processes", _NO_PACKAGE, lambda _: _PLAIN),
            ("package-seen", f"{_PACKAGE}, its content seen before", partial(_packaged, content="the same")),
        )
    ),
    Row(
        "gang-again",
        f"{_NO_PACKAGE}, of which one is killed: from there to the last first instruction of the next run",
        f"{REPLICAS} x Popen",
        5.0,
        _again,
        bound="the pause of 1 s before the first retry",
    ),
    Row("launch-ray", f"{_NO_PACKAGE}: {_FROM}", "Ray Jobs, one entry point", 0.25, _against_ray, bound=_OF_A_LAUNCH),
    Row(
        "launch-package-edited",
        f"{_PACKAGE}, its content new, a dependency that the agent's Python lacks, as the one before: {_FROM}",
        "`uv venv` and `uv pip install` of it, wheels cached",
        1.5,
        partial(_package_new, first=False),
        bound="the launch itself, beside it the check of the archive, its bytecode, and a link for each file that was "
        "installed before. Tried: pip's answer is kept for packages with the same metadata",
    ),
    Row(
        "launch-package-new",
        f"{_PACKAGE}, its content and its requirements new, wheels cached: {_FROM}",
        "`uv venv` and `uv pip install` of it",
        1.5,
        partial(_package_new, first=True),
        bound="the launch itself, which takes longer than uv alone, and beside it the start of the installer, the "
        "metadata of the base's packages, which uv is shown, and the bytecode of what is new, which uv alone leaves "
        "to each start",
    ),
)
