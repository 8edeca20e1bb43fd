"""Fixtures and xdist groups of all tests."""

import fcntl
import os
import random
import signal
import zlib
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from beds import databases, engines
from beds import slurm as slurm_bed
from beds.engines import Engine, NoEngine, OwnEngine
from beds.installed import frameworks
from beds.installed.missing import needing
from browser import quiet_network

if TYPE_CHECKING:  # it imports what only its tests need
    from beds.kubernetes.bed import Bed

E = TypeVar("E", bound=Engine)
_USUAL_SEED = 750400

settings.register_profile(  # on top of Hypothesis' own: its profile `ci` has fixed seeds
    "trainyard",
    settings(),
    deadline=None,  # no property fails because the machine is slow
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("trainyard")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of tests/chaos; here, where they are known however little of the tests is asked for."""
    group = parser.getgroup("chaos", "random histories of the real service")
    for name, meaning in {
        "seed": "the first history (default: CHAOS_SEED; else a random one where a number of histories is given)",
        "histories": "how many with processes, on each database",
        "docker-histories": "how many with containers, on each database",
        "kubernetes-histories": "how many with pods, on each database",
        "kills": "how often a training is killed",
    }.items():
        group.addoption(f"--chaos-{name}", type=int, metavar="N", help=meaning)
    for name, kinds in {"runtime": ("process", "docker", "kubernetes"), "database": ("sqlite", "postgresql")}.items():
        group.addoption(f"--chaos-{name}", choices=kinds, action="append", help="default: each")


def pytest_report_header() -> str:
    return f"chaos: seed {os.environ['CHAOS_SEED']}"


def pytest_configure(config: pytest.Config) -> None:
    """Restore SIGINT and SIGHUP, which are ignored in a background job or under nohup(1), and so in every program
    that the tests start. Choose one chaos seed for all processes of a test session: random for `make chaos`, fixed in
    an ordinary run, whose outcome is then that of the change under test."""
    option = config.getoption
    asked = option("--chaos-seed")
    if asked is not None:
        os.environ["CHAOS_SEED"] = str(asked)
    kinds = ("", "docker-", "kubernetes-")
    searches = any(option(f"--chaos-{kind}histories") is not None for kind in kinds)
    seed = random.SystemRandom().randrange(10**6) if searches else _USUAL_SEED
    os.environ.setdefault("CHAOS_SEED", str(seed))
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what `make test` leaves out, above pytest's last line, which counts the rest and the minutes."""
    if config.option.markexpr == "not long":
        terminalreporter.write_line(
            "Left out (make test-all runs them): chaos, attacks, failures of clusters, TensorFlow, Google's clients, "
            "long trainings"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Which tests stay in one process when several run beside each other (pytest-xdist's `--dist loadgroup`): those
    of a file, since they share its fixtures; all with a container engine, of which there is one, and with them all
    in a browser, unless it has a network of its own, when two processes share the browser's files; all on Kubernetes
    and all on Slurm, which they share; all that train, since each of them takes every core. What takes longest begins
    first."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
        if _is_long(item):
            item.add_marker(pytest.mark.long)
        if _is_long(item) or _starts_a_service(item):
            item.add_marker(pytest.mark.slow)
        if _may_run_again(item):
            item.add_marker(pytest.mark.flaky(reruns=1))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (*_GROUPS_FIRST, _group(item)).index(_group(item)))


def _is_long(item: pytest.Item) -> bool:
    """Whether only `make test-all` runs the test. The tests of the trainers have no markers of ours."""
    marks = any(item.get_closest_marker(name) for name in ("long", "frameworks", "clients"))
    case = item.nodeid.removeprefix("trainer_library/tests/")
    return marks or case in _LONG_TRAININGS or case.partition("[")[0] in _LONG_TRAININGS


def _starts_a_service(item: pytest.Item) -> bool:
    """Whether the test runs on PostgreSQL, a container engine or Kubernetes, or starts the installed program."""
    fixtures = {"database", "postgresql", "engine", "own_engine", "kubernetes", "slurm", _BROWSER} & set(
        getattr(item, "fixturenames", ())
    )
    marks = any(item.get_closest_marker(name) for name in ("containers", "cluster", "e2e"))
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return bool(fixtures) or marks or parameters.get("every_database") == "postgresql"


def _may_run_again(item: pytest.Item) -> bool:
    """Whether it may fail for what is not ours: a real cluster or container engine, a browser, a training, or the whole
    service as processes that other tests leave without CPU. It runs a second time then, and the report has the first
    failure. What looks for rare failures of ours is never run again."""
    looks_for_rare_failures = item.nodeid.startswith(("tests/chaos/", "tests/property/"))
    starts_processes = item.get_closest_marker("e2e") is not None
    return not looks_for_rare_failures and (starts_processes or _group(item) in _GROUPS_FIRST)


_BROWSERS = ("browser", "other browser")
_GROUPS_FIRST = ("engine", *_BROWSERS, "training", "kubernetes", "slurm")
_TRAINING = (
    "trainer_library/",
    "trainer_template/",
    "tests/e2e/test_training.py",
    "tests/chaos/test_training.py",
    "tests/unit/test_benchmarks.py",
)
_LONG_TRAININGS = (
    "trainer_template/tests/test_task.py::test_network_with_batch_norm_dropout_and_bfloat16_needs_no_other_loop",
    "trainer_template/tests/test_task.py::test_one_of_two_on_a_job_dir_ends_and_harms_nothing",
    "trainer_template/tests/test_task.py::test_sigterm_to_a_worker_saves_and_the_same_command_ends_as_if_undisturbed",
    "models/test_gpt2.py::"
    "test_gpt2_trains_on_text_by_its_own_tokenizer_in_two_processes_of_which_the_chief_has_the_files",
    "test_compilation.py::test_second_start_of_a_gang_and_its_evaluator_compiles_nothing_and_trains_bitwise_equal",
    "test_fine_tuning.py::test_divided_state_is_saved_by_each_process_and_a_killed_gang_ends_as_if_undisturbed",
    "test_fine_tuning.py::test_language_model_on_text_of_ones_own_with_a_tokenizer_that_a_second_start_finds",
    "test_fine_tuning.py::test_processes_that_decode_give_the_same_training_and_name_a_broken_file",
    "test_fine_tuning.py::test_several_inputs_and_labels_train_with_a_callback_and_predict",
    "test_own.py::test_model_in_one_file_trains_equally_on_one_replica_on_two_then_one_and_after_a_kill",
    "test_steps.py::test_replicas_pieces_and_layouts_of_the_state_do_the_same_step[eight]",
    "test_training.py::test_early_stopping_exports_the_best_state_also_after_a_kill",
    "test_training.py::"
    "test_evaluator_gets_sigterm_and_evaluates_the_last_checkpoint_of_a_training_that_has_ended_alone",
    "test_training.py::"
    "test_exception_in_a_worker_or_kill_of_the_chief_ends_both_and_the_same_command_resumes_bitwise_equal",
    "test_training.py::test_invalid_arguments_are_one_line_without_a_traceback",
    "test_training.py::test_on_a_terminal_there_is_a_bar_in_place_of_progress_lines",
    "test_training.py::test_same_command_after_the_end_trains_no_more_and_that_of_another_model_is_refused",
    "test_training.py::test_sigterm_saves_and_the_same_command_resumes_bitwise_equal_while_sigusr1_dumps_stacks",
    "test_training.py::test_sigterm_to_a_worker_stops_all_at_one_step_and_another_number_of_replicas_resumes",
    "test_training.py::test_sigterm_to_a_worker_in_an_evaluation_stops_all_and_the_same_command_begins_with_it",
    "test_training.py::test_what_does_not_come_in_time_is_named_in_one_line_and_the_exit_code_is_1",
    "training/test_optimizers.py::test_optimizers_with_a_key_or_the_loss_resume_to_the_same_bits_in_each_layout",
)
_BROWSER = "network"  # the fixture that each browser has


def _group(item: pytest.Item) -> str:
    path = item.nodeid.partition("::")[0]
    fixtures = set(getattr(item, "fixturenames", ()))
    if "kubernetes" in fixtures or item.get_closest_marker("cluster"):
        return "kubernetes"
    if "slurm" in fixtures:
        return "slurm"
    if {"engine", "own_engine"} & fixtures or item.get_closest_marker("containers"):
        return "engine"
    if _BROWSER in fixtures:
        return _BROWSERS[zlib.crc32(path.encode()) % 2] if quiet_network.is_possible() else "engine"
    return "training" if path.startswith(_TRAINING) else path


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
    """An engine for a test that breaks it."""
    with ExitStack() as stack:
        yield _usable(engines.own(), stack)


@pytest.fixture(scope="session")
def kubernetes() -> Iterator["Bed"]:
    """A cluster of two nodes, shared by all tests: each removes what it made, and repairs what it broke."""
    from beds.kubernetes import bed
    from beds.kubernetes.build import NoKubernetes

    with ExitStack() as stack:
        with needing(NoKubernetes):
            started = stack.enter_context(bed.started())
        yield started


@pytest.fixture(scope="session")
def slurm() -> Iterator[slurm_bed.SlurmBed]:
    """A cluster of three nodes, shared by all tests, whose commands are on the PATH: each removes what it made."""
    with ExitStack() as stack:
        with needing(slurm_bed.NoSlurm):
            bed = stack.enter_context(slurm_bed.started())
        path = stack.enter_context(pytest.MonkeyPatch.context())
        path.setenv("PATH", str(bed.commands), prepend=os.pathsep)
        yield bed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of the cluster's logs with a failure on it."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get("kubernetes")
    if report.failed and cluster is not None:
        report.sections.append(("Components of Kubernetes", cluster.last_words()))
    return report


@pytest.fixture(scope="session")
def frameworks_python() -> Path:
    """An interpreter with TensorFlow and torch."""
    with needing(frameworks.NoFrameworks):
        return frameworks.python(frameworks.PINS)


@pytest.fixture(scope="session")
def estimators_python() -> Path:
    """An interpreter with the last TensorFlow that has estimators."""
    with needing(frameworks.NoFrameworks):
        return frameworks.python(frameworks.WITH_ESTIMATORS)


def _usable(engine: AbstractContextManager[E], stack: ExitStack) -> E:
    """An engine that is up, with its base image."""
    with needing(NoEngine):
        usable = stack.enter_context(engine)
        usable.provide_base_image()
    return usable
