"""Places to play histories in, and how many: see `test_histories.py`."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from beds import databases
from beds.engines import Engine
from chaos.history import Place
from chaos.plan import RUNTIMES
from chaos.service import program
from chaos.service.cluster import chaos_cluster
from chaos.service.services import Forge
from trainyard_cli.local.listening import addresses_of_this_machine

FEW = {"process": 3, "docker": 2, "kubernetes": 2}
"""Histories of each combination in an ordinary run of the tests."""
DATABASES = ("sqlite", "postgresql")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    option = metafunc.config.getoption
    if "restored" in metafunc.fixturenames:
        histories = option("--chaos-histories")
        if histories is None:
            histories = FEW["process"] if option("--chaos-seed") is None else 1
        metafunc.parametrize("restored", range(seed(), seed() + histories))
    if "combination" not in metafunc.fixturenames:
        return
    few = FEW if option("--chaos-seed") is None else dict.fromkeys(RUNTIMES, 1)
    asked = {
        "process": option("--chaos-histories"),
        "docker": option("--chaos-docker-histories"),
        "kubernetes": option("--chaos-kubernetes-histories"),
    }
    metafunc.parametrize(
        "combination",
        [
            pytest.param(
                (runtime, database, seed() + number),
                id=f"{runtime}-{database}-{seed() + number}",
                marks=_marks(runtime, number),
            )
            for runtime in option("--chaos-runtime") or RUNTIMES
            for database in option("--chaos-database") or DATABASES
            for number in range(few[runtime] if asked[runtime] is None else asked[runtime])
        ],
    )


def _marks(runtime: str, number: int) -> list[pytest.MarkDecorator]:
    """The first history with processes is no long test."""
    marks = [pytest.mark.containers] if runtime == "docker" else []
    return marks if runtime == "process" and number == 0 else [*marks, pytest.mark.long]


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Print with -v a line for each history: what became of it, and how long it took."""
    if report.when == "call" and report.passed and "test_histories.py" in report.nodeid:
        return "passed", ".", f"kept every invariant ({report.duration:.1f} s)"
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows: dict[str, list[tuple[str, bool, float]]] = {}
    effects: dict[str, Counter[str]] = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            properties = dict(report.user_properties)
            if report.when == "call" and "history" in properties:
                row = (str(properties["history"]), outcome == "passed", report.duration)
                combination = str(properties["combination"])
                rows.setdefault(combination, []).append(row)
                effects.setdefault(combination, Counter()).update(properties.get("effects") or {})
    if rows:
        terminalreporter.section("histories")
    for combination, histories in sorted(rows.items()):
        passed = sum(1 for _, good, _ in histories if good)
        seconds = sorted(duration for _, _, duration in histories)
        bad = " ".join(name for name, good, _ in histories if not good)
        terminalreporter.write_line(
            f"{combination:20} {passed} of {len(histories)} kept every invariant; "
            f"{seconds[len(seconds) // 2]:.1f} s each" + (f"; seeds that did not: {bad}" if bad else "")
        )
        met = ", ".join(f"{what} {count}" for what, count in sorted(effects[combination].items()))
        terminalreporter.write_line(f"{'':20} met: {met or 'nothing'}")


def seed() -> int:
    """Seed of the first history."""
    return int(os.environ["CHAOS_SEED"])


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    forge = Forge()
    try:
        yield forge
    finally:
        forge.close()


@pytest.fixture(scope="session")
def job_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with nothing but the program of chaotic jobs."""
    directory = tmp_path_factory.mktemp("python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    (packages,) = (directory / "lib").glob("python*/site-packages")
    shutil.copy(program.__file__, packages / "chaos_program.py")
    return str(directory / "bin" / "python")


@pytest.fixture
def place(request: pytest.FixtureRequest, combination: tuple[str, str, int]) -> Iterator[Place]:
    runtime, database, number = combination
    yield from _place(request, runtime, database, number)


@pytest.fixture
def sweep_place(request: pytest.FixtureRequest, sweep: str) -> Iterator[Place]:
    yield from _place(request, sweep, "sqlite")


@pytest.fixture
def restored_place(request: pytest.FixtureRequest, restored: int) -> Iterator[Place]:
    yield from _place(request, "process", "sqlite", restored)


@pytest.fixture(scope="session")
def chaos_seed() -> int:
    return seed()


def _place(request: pytest.FixtureRequest, runtime: str, database: str, number: int = 0) -> Iterator[Place]:
    forge: Forge = request.getfixturevalue("forge")
    server: databases.PostgreSQL | None = None
    url = ""
    if database == "postgresql":
        server = request.getfixturevalue("postgresql")
        url = server.create()
    python = request.getfixturevalue("job_python")
    if runtime == "process":
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        yield Place(forge, url, python=python, address=next(iter(addresses_of_this_machine()), ""), worker=worker)
    elif runtime == "kubernetes":
        with chaos_cluster(request.getfixturevalue("tmp_path"), number) as cluster:
            yield Place(forge, url, image="chaos:1", cluster=cluster)
    else:
        engine: Engine = request.getfixturevalue("engine")
        yield Place(forge, url, python=python, image=engine.base_image, environment=engine.environment)
    if server is not None:
        server.drop(url)
