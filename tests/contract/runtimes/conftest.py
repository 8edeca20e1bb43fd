from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.runtimes.runtime_labs import Driver, FakeLab, process_lab


@pytest.fixture(params=["fake", "process"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    if request.param == "fake":
        yield Driver(FakeLab())
        return
    with process_lab(tmp_path / "state") as driver:
        yield driver
