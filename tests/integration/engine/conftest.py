from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.engines import Engine
from integration.engine.runs import Host, host_on


@pytest.fixture
def host(engine: Engine, tmp_path: Path) -> Iterator[Host]:
    with host_on(engine, tmp_path / "state") as host:
        yield host
