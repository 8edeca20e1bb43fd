from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.runtimes.runtime_labs import DockerLab, Driver, FakeLab, process_lab


@pytest.fixture(params=["fake", "process", "docker"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    match request.param:
        case "fake":
            yield Driver(FakeLab())
        case "process":
            with process_lab(tmp_path / "state") as driver:
                yield driver
        case "docker":
            lab = DockerLab(tmp_path / "state", request.getfixturevalue("engine"))
            yield Driver(lab)
            lab.end()
