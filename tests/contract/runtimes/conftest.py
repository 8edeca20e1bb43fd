"""Drivers of the contract suite: one for each runtime."""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from beds.kubernetes.bed import Bed
from contract.runtimes.runtime_labs import (
    DockerLab,
    Driver,
    EngineLab,
    FakeLab,
    KubernetesLab,
    Lab,
    ProcessLab,
    SetLab,
    SlurmLab,
)
from contract.runtimes.side_by_side import SideBySide, runs_alone, runs_side_by_side
from trainyard_agent.engines.kubernetes.api.access import RULES


def _process(_request: pytest.FixtureRequest, tmp_path: Path) -> AbstractContextManager[Driver]:
    return ProcessLab(tmp_path / "state").driven()


def _slurm(request: pytest.FixtureRequest, tmp_path: Path) -> AbstractContextManager[Driver]:
    return SlurmLab(tmp_path / "shared", request.getfixturevalue("slurm")).driven()


def _docker(request: pytest.FixtureRequest, tmp_path: Path) -> AbstractContextManager[Driver]:
    return DockerLab(tmp_path / "state", request.getfixturevalue("engine")).driven()


LOOKING = {"apiGroups": [""], "resources": ["services"], "verbs": ["list"]}
"""What the lab may do besides, to see that nothing remains."""


class Namespaces:
    """Namespaces of a cluster, each with the permissions of an agent. What a test leaves in one is removed while the
    next test runs in another: pods take seconds to end."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self._lock = threading.Lock()
        self._free: list[Path] = []
        self._removing: list[tuple[Path, Future[None]]] = []
        self._pool = ThreadPoolExecutor(4)

    @contextmanager
    def lab(self, state_dir: Path) -> Iterator[KubernetesLab]:
        kubeconfig = self._free_namespace()
        lab = KubernetesLab(state_dir, kubeconfig)
        try:
            yield lab
        finally:
            with self._lock:
                self._removing.append((kubeconfig, self._pool.submit(lab.end)))

    def close(self) -> None:
        for _, removing in self._removing:
            removing.result()
        self._pool.shutdown()

    def _free_namespace(self) -> Path:
        with self._lock:
            for kubeconfig, removing in list(self._removing):
                if removing.done():
                    self._removing.remove((kubeconfig, removing))
                    removing.result()  # one test fails of it, and the namespace is not used again
                    self._free.append(kubeconfig)
            if self._free:
                return self._free.pop()
        return self._bed.with_role(f"agent-{uuid.uuid4().hex[:8]}", [*RULES, LOOKING])


@pytest.fixture(scope="session")
def kubernetes_namespaces(kubernetes: Bed) -> Iterator[Namespaces]:
    namespaces = Namespaces(kubernetes)
    yield namespaces
    namespaces.close()


@pytest.fixture(scope="session")
def side_by_side(
    request: pytest.FixtureRequest, kubernetes_namespaces: Namespaces, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SideBySide]:
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and runs_side_by_side(item)]
    tests = SideBySide(items, kubernetes_namespaces.lab, tmp_path_factory.mktemp("side-by-side"))
    yield tests
    tests.close()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Take the result of a test that runs side by side with others."""
    if not runs_side_by_side(pyfuncitem):
        return None
    tests: SideBySide = pyfuncitem._request.getfixturevalue("side_by_side")
    tests.result(pyfuncitem)
    return True


@pytest.fixture
def kubernetes_lab(kubernetes_namespaces: Namespaces, tmp_path: Path) -> Iterator[KubernetesLab]:
    with kubernetes_namespaces.lab(tmp_path / "state") as lab:
        yield lab


@contextmanager
def _kubernetes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    if runs_side_by_side(request.node):
        yield request.getfixturevalue("side_by_side")  # which is asked for its result
        return
    if runs_alone(request.node):
        request.getfixturevalue("side_by_side").wait()
    namespaces: Namespaces = request.getfixturevalue("kubernetes_namespaces")
    with namespaces.lab(tmp_path / "state") as lab:
        yield Driver(lab)


_CONTRACT = ("test_runtime_contract", "test_log_contract")


def pytest_itemcollected(item: pytest.Item) -> None:
    """On a cluster the contract and its logs are for `make test`; what else is shown on every engine, such as mounts,
    secrets and attachments, is for `make test-all` there."""
    parameters = (
        item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    )
    if {"kubernetes", "slurm"} & set(parameters) and item.path.stem not in _CONTRACT:
        item.add_marker(pytest.mark.long)


SCRIPTED: dict[str, Callable[[], Lab]] = {"fake": FakeLab, "engine": EngineLab, "set": SetLab}
"""Labs of runtimes that start no programs: on a host, over several hosts, and several runtimes as one."""

REAL = {
    "process": (_process, pytest.mark.slow),
    "docker": (_docker, pytest.mark.containers),
    "slurm": (_slurm, pytest.mark.slow),
    "kubernetes": (_kubernetes, pytest.mark.cluster),
}
"""Drivers of runtimes that start programs, and the marks of their tests."""

_REAL_PARAMETERS = [pytest.param(name, marks=mark) for name, (_, mark) in REAL.items()]


@pytest.fixture(params=[*SCRIPTED, *_REAL_PARAMETERS])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    if request.param in SCRIPTED:
        yield Driver(SCRIPTED[request.param]())
        return
    with REAL[request.param][0](request, tmp_path) as driver:
        yield driver


@pytest.fixture
def engine_lab() -> EngineLab:
    """A lab of a runtime whose engine has a mind of its own."""
    return EngineLab()


@pytest.fixture(params=_REAL_PARAMETERS)
def real_driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    """Drives a runtime that starts programs."""
    with REAL[request.param][0](request, tmp_path) as driver:
        yield driver


@pytest.fixture(params=[parameter for parameter in _REAL_PARAMETERS if parameter.values != ("kubernetes",)])
def host_driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    """Drives a runtime of one machine, whose log tells two streams apart and has a line at once."""
    with REAL[request.param][0](request, tmp_path) as driver:
        yield driver
