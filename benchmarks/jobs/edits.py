"""One line of a program changed, submitted, and its first line seen on the terminal: what one waits for all day."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.jobs.processes import uv_install
from benchmarks.rows import Row, Samples, interleaved
from benchmarks.service import PRINT_TIME, TRAINYARD, Service, running
from benchmarks.tools import RAY, installed, ray
from trainyard_programs.archives import Archive, check_archive

_HELLO = "hello of the program"
_PROGRAM = f"import time\nprint({_HELLO!r}, flush=True)\ntime.sleep(0.3)\n"
_SETUP = "from setuptools import setup\nsetup(name='edited', version='1', packages=['edited'])\n"
_IMPORTS = (sys.executable, "-c", "import click, httpx")
_numbers = count()


def _edit(directory: Path) -> Path:
    """A package whose program was edited just now."""
    package = directory / "edited"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "task.py").write_text(f"{_PROGRAM}# {next(_numbers)}\n", encoding="utf-8")
    return package


def _first_line(command: Sequence[str | Path], directory: Path, variables: dict[str, str]) -> float:
    """Seconds until a command shows the program's first line. Waits for its end."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, cwd=directory, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        seen = [time.perf_counter() - began for line in process.stdout if _HELLO in line]
    if process.returncode or not seen:
        raise RuntimeError(f"{command} ended with {process.returncode}, and showed its first line {len(seen)} times.")
    return seen[0]


def _by_us(service: Service) -> float:
    package = _edit(service.directory)
    job = f"edited_{next(_numbers)}"
    command = [TRAINYARD, "jobs", "submit", "training", job, "--package-path", str(package)]
    command += ["--module-name", "edited.task", "--stream-logs"]
    return _first_line(command, service.directory, dict(service.environment))


def _imports() -> float:
    began = time.perf_counter()
    subprocess.run(_IMPORTS, check=True)
    return time.perf_counter() - began


def _against_imports(quick: bool) -> Samples:
    with running() as service:
        return interleaved(partial(_by_us, service), _imports, 3 if quick else 15, "s", warm_up=2)


def _against_ray(quick: bool) -> Samples:
    programs = installed(RAY)
    with running() as service, ray() as client:
        directory = service.directory / "of-ray"
        directory.mkdir()
        variables = {**os.environ, "RAY_ADDRESS": str(client.base_url), "PATH": f"{programs}:{os.environ['PATH']}"}

        def by_ray() -> float:
            _edit(directory)
            command = [str(programs / "ray"), "job", "submit", "--working-dir", str(directory)]
            return _first_line([*command, "--", sys.executable, "-m", "edited.task"], directory, variables)

        return interleaved(partial(_by_us, service), by_ray, 2 if quick else 5, "s", warm_up=1)


def _sdist(quick: bool) -> Samples:
    """From the request of a job with a source distribution that nobody has seen to its first instruction, and
    `uv venv` and `uv pip install` of such a one."""
    with running() as service:

        def edited() -> Archive:
            (service.directory / "setup.py").write_text(_SETUP, encoding="utf-8")
            _edit(service.directory)
            made = service.directory / "dist"
            shutil.rmtree(made, ignore_errors=True)
            subprocess.run([sys.executable, "setup.py", "--quiet", "sdist"], cwd=service.directory, check=True)
            return check_archive(next(made.iterdir()))

        def ours() -> float:
            address = service.client.upload(edited().path)
            job = {"pythonModule": "timeit", "args": ["-n1", "-r1", PRINT_TIME], "packageUris": [address]}
            return service.launch(job, replicas=1)

        def by_uv() -> float:
            return uv_install(edited().path, directory=service.directory)

        return interleaved(ours, by_uv, 3 if quick else 11, "s")


_WHAT = "one line of a package's program changed: `jobs submit training --stream-logs` to its first line"
_BOUND = (
    "imports of the command (click, httpx and pydantic's models of a job are twice those of click and httpx), and the "
    "start of the program's Python"
)

ROWS = (
    Row("edit-first-line", _WHAT, "`import click, httpx`", 3.0, _against_imports, bound=_BOUND),
    Row("edit-ray", _WHAT, "`ray job submit --working-dir`", 0.5, _against_ray, bound=_BOUND, in_quick=False),
    Row(
        "launch-sdist",
        "a package job, a source distribution whose content is new: request to the first instruction",
        "`uv venv` and `uv pip install` of it",
        1.2,
        _sdist,
        bound="setuptools, which both run, and beside it the check of the archive and the start of the program",
    ),
)
