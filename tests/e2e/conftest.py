from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from beds.engines import Engine
from beds.waiting import until
from e2e.harness import Service, started

_SHARED_SERVICES = ("service", "containers", "cluster", "today", "then", "site")


@pytest.fixture(autouse=True)
def second_try(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that runs again has a project of its own: the names of its jobs are taken in the one before."""
    services = []
    if getattr(request.node, "execution_count", 1) > 1:
        given = [request.getfixturevalue(name) for name in request.fixturenames if name in _SHARED_SERVICES]
        services = [(service, service.project) for service in given]
    for service, _ in services:
        service.use_project("again")
    yield
    for service, project in services:
        service.use_project(project)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Shared by the tests of a module, which must leave no job unfinished."""
    yield from started(tmp_path_factory.mktemp("service"))


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[Service]:
    """A service for a test that breaks it."""
    yield from started(tmp_path)


@pytest.fixture(scope="module")
def containers(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with an engine. Package jobs run in containers of the tests' base image if their runtimeVersion is
    2.11, else as processes."""
    root = tmp_path_factory.mktemp("containers")
    table = {"images": {"base": {"image": engine.base_image}}, "versions": {"2.11": {"cpu": "base"}}}
    (root / "runtimes.yaml").write_text(yaml.safe_dump(table))
    types = {"machineTypes": {"small": {"family": "site", "vcpus": 1, "memoryGb": 0.2}}}
    (root / "machine_types.yaml").write_text(yaml.safe_dump(types))
    flags = ("--runtimes", str(root / "runtimes.yaml"), "--machine-types", str(root / "machine_types.yaml"))
    yield from started(root, *flags, runtime="auto", environment=engine.environment)


@pytest.fixture
def nothing_left(containers: Service, engine: Engine) -> Iterator[None]:
    """Check that a test, which ends its jobs, leaves no container."""
    yield
    until(lambda: not engine.remaining("trainyard.agent"), "the engine to be empty")


@pytest.fixture
def strict_service(tmp_path: Path) -> Iterator[Service]:
    yield from started(tmp_path, "--capacity", "strict", "--cpus", "0,1")
