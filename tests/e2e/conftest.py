from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.harness import Service, started


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Shared by the tests of a module, which must leave no job unfinished."""
    yield from started(tmp_path_factory.mktemp("service"))


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[Service]:
    """For a test that breaks things."""
    yield from started(tmp_path)


@pytest.fixture
def strict_service(tmp_path: Path) -> Iterator[Service]:
    yield from started(tmp_path, "--capacity", "strict", "--cpus", "0,1")
