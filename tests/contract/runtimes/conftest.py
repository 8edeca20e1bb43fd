"""Drivers of the contract suite: one for each runtime."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from contract.runtimes.runtime_labs import DockerLab, Driver, FakeLab, Lab, SetLab, process_lab


def _process(_request: pytest.FixtureRequest, tmp_path: Path) -> AbstractContextManager[Driver]:
    return process_lab(tmp_path / "state")


@contextmanager
def _docker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    lab = DockerLab(tmp_path / "state", request.getfixturevalue("engine"))
    yield Driver(lab)
    lab.end()


SCRIPTED: dict[str, Callable[[], Lab]] = {"fake": FakeLab}
"""Labs of runtimes that start no programs."""

SETS: dict[str, Callable[[], Lab]] = {"set": SetLab}
"""Labs of several runtimes as one."""

REAL = {"process": (_process, pytest.mark.slow), "docker": (_docker, pytest.mark.containers)}
"""Drivers of runtimes that start programs, and the marks of their tests."""

_REAL_PARAMETERS = [pytest.param(name, marks=mark) for name, (_, mark) in REAL.items()]


@pytest.fixture(params=[*SCRIPTED, *SETS, *_REAL_PARAMETERS])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    scripted = {**SCRIPTED, **SETS}
    if request.param in scripted:
        yield Driver(scripted[request.param]())
        return
    with REAL[request.param][0](request, tmp_path) as driver:
        yield driver


@pytest.fixture(params=_REAL_PARAMETERS)
def real_driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    """Drives a runtime that starts programs."""
    with REAL[request.param][0](request, tmp_path) as driver:
        yield driver
