from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.runtimes.runtime_labs import Driver, ProcessLab


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """The process runtime, over a state directory of the test's own."""
    with ProcessLab(tmp_path / "state").driven() as driver:
        yield driver


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The directory of its runs."""
    return tmp_path / "state" / "runs"
