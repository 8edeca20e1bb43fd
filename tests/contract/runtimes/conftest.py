from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contract.runtimes.runtime_labs import DockerLab, Driver, FakeLab, process_lab

DOCKER = pytest.param("docker", marks=pytest.mark.containers)


@pytest.fixture(params=["fake", "process", DOCKER])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    if request.param == "fake":
        yield Driver(FakeLab())
        return
    with _driver(request, tmp_path) as driver:
        yield driver


@pytest.fixture(params=["process", DOCKER])
def real_driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    """Of a runtime that starts programs."""
    with _driver(request, tmp_path) as driver:
        yield driver


@contextmanager
def _driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    if request.param == "process":
        with process_lab(tmp_path / "state") as driver:
            yield driver
    else:
        lab = DockerLab(tmp_path / "state", request.getfixturevalue("engine"))
        yield Driver(lab)
        lab.end()
