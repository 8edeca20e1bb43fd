"""Fixtures and xdist groups of all tests."""

import fcntl
import os
import random
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

import databases
import engines
import frameworks
from browser import quiet_network
from engines import Engine, NoEngine, OwnEngine

E = TypeVar("E", bound=Engine)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Of tests/chaos; here, where they are known however little of the tests is asked for."""
    group = parser.getgroup("chaos", "random histories of the real service")
    for name, meaning in {
        "seed": "the first history (default: CHAOS_SEED, else a random one)",
        "histories": "how many with processes, on each database",
        "docker-histories": "how many with containers, on each database",
        "kills": "how often a training is killed",
    }.items():
        group.addoption(f"--chaos-{name}", type=int, metavar="N", help=meaning)
    for name, kinds in {"runtime": ("process", "docker"), "database": ("sqlite", "postgresql")}.items():
        group.addoption(f"--chaos-{name}", choices=kinds, action="append", help="default: each")


def pytest_report_header() -> str:
    return f"chaos: seed {os.environ['CHAOS_SEED']}"


def pytest_configure(config: pytest.Config) -> None:
    """Restore SIGINT and SIGHUP, which are ignored in a background job or under nohup(1), and so in every program
    that the tests start. Choose one chaos seed for all processes of a test session."""
    asked = config.getoption("--chaos-seed")
    if asked is not None:
        os.environ["CHAOS_SEED"] = str(asked)
    os.environ.setdefault("CHAOS_SEED", str(random.SystemRandom().randrange(10**6)))
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Which tests stay in one process when several run beside each other (pytest-xdist's `--dist loadgroup`): those
    of a file, since they share its fixtures; all with a container engine, of which there is one, and with them all
    in a browser, unless it has a network of its own; all that train, since each of them takes every core; all that
    run replicas of the same run, which is found by its id on the whole machine. What takes longest begins first."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
        if _starts_a_service(item):
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (*_GROUPS_FIRST, _group(item)).index(_group(item)))


def _starts_a_service(item: pytest.Item) -> bool:
    """Whether the test runs on PostgreSQL or on a container engine, or starts the installed program."""
    fixtures = {"database", "postgresql", "engine", "own_engine"} & set(getattr(item, "fixturenames", ()))
    marks = any(item.get_closest_marker(name) for name in ("containers", "e2e"))
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return bool(fixtures) or marks or parameters.get("every_database") == "postgresql"


_GROUPS_FIRST = ("engine", "browser", "training")
_TRAINING = (
    "trainer_template/",
    "tests/e2e/test_training.py",
    "tests/chaos/test_training.py",
    "tests/unit/test_benchmarks.py",
)
_BROWSER = "tests/browser/"
_REPLICAS = ("tests/unit/agent/", "tests/contract/runtimes/")


def _group(item: pytest.Item) -> str:
    path = item.nodeid.partition("::")[0]
    asks_for = {"engine", "own_engine"} & set(getattr(item, "fixturenames", ()))
    if asks_for or item.get_closest_marker("containers"):
        return "engine"
    if path.startswith(_BROWSER):
        return "browser" if quiet_network.is_possible() else "engine"
    for group, paths in {"training": _TRAINING, "replicas": _REPLICAS}.items():
        if path.startswith(paths):
            return group
    return path


@pytest.fixture(scope="session")
def postgresql() -> Iterator[databases.PostgreSQL]:
    """A real PostgreSQL, for all tests."""
    with databases.postgresql() as server:
        yield server


@pytest.fixture
def database(postgresql: databases.PostgreSQL) -> Iterator[str]:
    """The URL of an empty PostgreSQL database of the test's own."""
    url = postgresql.create(migrated=False)
    yield url
    postgresql.drop(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def every_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once on each database; its name."""
    server = request.getfixturevalue("postgresql") if request.param == "postgresql" else None
    with databases.use(server):
        yield request.param


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Shared by all tests: each removes what it made."""
    with ExitStack() as stack:
        if "PYTEST_XDIST_WORKER" in os.environ:
            lock = stack.enter_context((tmp_path_factory.getbasetemp().parent / "engine.lock").open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pytest.fail("two processes of tests want the engine: mark this test `containers`")
        yield _usable(engines.found(), stack)


@pytest.fixture
def own_engine() -> Iterator[OwnEngine]:
    """For a test that breaks it."""
    with ExitStack() as stack:
        yield _usable(engines.own(), stack)


@pytest.fixture(scope="session")
def frameworks_python() -> Path:
    """An interpreter with TensorFlow and torch."""
    try:
        return frameworks.python()
    except frameworks.NoFrameworks as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))


def _usable(engine: AbstractContextManager[E], stack: ExitStack) -> E:
    """Up, with its base image. Where that cannot be, the test is skipped; in CI nothing is skipped."""
    try:
        usable = stack.enter_context(engine)
        usable.provide_base_image()
    except NoEngine as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    return usable
