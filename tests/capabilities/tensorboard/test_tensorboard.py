"""`jobs tensorboard`: messages before TensorBoard starts, TensorBoard itself, and the copies of gs://."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from beds import storage_emulator
from beds.waiting import until
from support.addresses import free_ports
from trainyard_cli.capabilities.tensorboard import server as tensorboard
from trainyard_cli.capabilities.tensorboard.event_mirror import EventFileMirror, follow
from trainyard_cli.submission.upload import cloud_storage
from trainyard_protocol.answers.jobs import JobDetail, RunView
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, NotFound
from trainyard_protocol.states import JobState, RunState
from unit.cli.scripted_server import ScriptedServer, ok, refused, scripted_server
from unit.cli.terminal import Type, typed_words

PATIENCE_S = 60
NEVER = threading.Event()
EVENTS = "logs/train/events.out.tfevents.1"

FAKE = """
import pathlib, signal, sys, time
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("TensorFlow installation not found - running with reduced feature set.", file=sys.stderr)
print(f"TensorBoard 2.0 at http://{words['--host']}:{words['--port']}/ (Press CTRL+C to quit)", file=sys.stderr)
print("something that matters", file=sys.stderr, flush=True)
"""
EXITS_7 = "sys.exit(7)"
KILLS_ITSELF = "signal.raise_signal(signal.SIGKILL)"
STAYS = "signal.pause()"
ENDS_WITH_THE_FIRST_EVENT_FILE = """
while not (found := [p for p in pathlib.Path(words["--logdir"]).rglob("*tfevents*") if p.stat().st_size]):
    time.sleep(0.01)
print(f"saw {found[0].relative_to(words['--logdir'])}: {found[0].read_text()}", file=sys.stderr)
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        monkeypatch.setenv("TRAINYARD_SERVER", server.url)
        monkeypatch.setenv("TRAINYARD_TOKEN", "t")
        monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path / "state"))
        yield server


@pytest.fixture
def typed(script: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> Type:
    return lambda *words: typed_words(capsys, "jobs", "tensorboard", "j", *words)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`fake(EXITS_7)`: what `python -m tensorboard.main` does instead, after its first words."""

    def make(then: str) -> None:
        package = tmp_path / "fakes" / "tensorboard"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "main.py").write_text(FAKE + then)
        monkeypatch.setenv("PYTHONPATH", str(package.parent))

    return make


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    with storage_emulator.emulator("bucket") as url:
        yield url


@pytest.fixture
def storage(emulator: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
    client = cloud_storage("").client()
    yield client
    client.close()


def job(job_dir: object, *args: str, **changes: Any) -> JobDetail:
    resource = {"jobId": "j", "trainingInput": {"args": args}}
    return JobDetail(job=resource, job_dir=str(job_dir), state=JobState.RUNNING, **changes)


def answer(job_dir: object, *args: str) -> Any:
    return ok(job(job_dir, *args).model_dump(mode="json"))


def test_job_without_files_to_show_is_refused(typed: Type, script: ScriptedServer, tmp_path: Path) -> None:
    ran = RunView(run_id="r", number=1, state=RunState.RUNNING, agent="gpu-1", created_at="2026-11-20T12:00:00Z")
    none = tmp_path / "none"
    rows: list[tuple[Any, tuple[str, ...]]] = [
        (refused(NotFound("j was not found.")), ("ERROR: j was not found.\n",)),
        (answer(""), ("ERROR: Job [j] has no jobDir", "--job-dir")),
        (answer("relative/path"), ("cannot be read on this machine",)),
        (answer(__file__), ("cannot be read on this machine",)),
        (
            ok(job(none, runs=(ran,)).model_dump(mode="json")),
            (f"The directory {none} cannot be read on this machine", "on the machine where job [j] runs (agent gpu-1)"),
        ),
    ]
    for given, says in rows:
        script.answers = [given]
        printed = typed()
        assert (printed.code, printed.out) == (1, "")
        assert all(part in printed.err for part in says), printed.err
    script.answers = [answer(tmp_path)]
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"Port {port} of 127.0.0.1 is in use or not allowed" in typed("--port", str(port)).err


def test_tensorboard_that_is_not_installed_is_refused_with_both_ways_to_it(
    typed: Type, script: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    script.answers = [answer(tmp_path)]
    printed = typed()
    assert printed.code == 1
    assert "pip install 'trainyard[tensorboard]'" in printed.err
    assert f"`tensorboard --logdir {tmp_path}`" in printed.err


def test_usable_port_without_a_choice_is_the_first_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        first = other.getsockname()[1]
        monkeypatch.setattr(tensorboard, "FIRST_PORT", first)
        assert first < tensorboard.usable_port("127.0.0.1", None) < first + 100
        monkeypatch.setattr(tensorboard, "_PORTS", 1)
        with pytest.raises(FailedPrecondition, match="Every port from"):
            tensorboard.usable_port("127.0.0.1", None)


def test_usable_port_of_another_machines_address_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"192\.0\.2\.1 is not an address of this machine"):
        tensorboard.usable_port("192.0.2.1", None)


@pytest.mark.parametrize(("then", "code"), [(EXITS_7, 7), (KILLS_ITSELF, 137)])
def test_exit_code_of_tensorboard_is_passed_on_and_its_noise_is_not(
    typed: Type, script: ScriptedServer, fake: Callable[[str], None], tmp_path: Path, then: str, code: int
) -> None:
    fake(then)
    job_dir = tmp_path / "job"
    job_dir.mkdir()
    script.answers = [answer(job_dir)]
    (port,) = free_ports(1)
    printed = typed("--port", str(port))
    assert (printed.code, printed.out) == (code, "")
    assert printed.err.splitlines() == [
        f"There are no event files in {job_dir} yet. Curves appear when the job writes them.",
        f"TensorBoard shows job [j] at http://127.0.0.1:{port}/ (Ctrl-C ends it; the job continues).",
        "something that matters",
    ]


def test_logdir_of_the_command_is_shown_in_place_of_the_jobs(
    typed: Type, script: ScriptedServer, fake: Callable[[str], None], storage: Any, tmp_path: Path
) -> None:
    fake(ENDS_WITH_THE_FIRST_EVENT_FILE)
    storage.bucket("bucket").blob(f"chosen/{EVENTS}").upload_from_string(b"loss")
    script.answers = [answer("")]
    printed = typed("--logdir", "gs://bucket/chosen")
    assert (printed.code, f"saw {EVENTS}: loss" in printed.err) == (0, True), printed.err
    rows = {
        "s3://bucket/a": "s3://bucket/a must be gs://BUCKET/DIRECTORY, or a directory of this machine",
        "gs://": "gs:// names no bucket",
        str(tmp_path / "none"): f"{tmp_path / 'none'} must be gs://BUCKET/DIRECTORY",
    }
    for logdir, says in rows.items():
        script.answers = [answer(tmp_path)]
        refused_one = typed("--logdir", logdir)
        assert (refused_one.code, f"argument --logdir: {says}" in refused_one.err) == (1, True), refused_one.err


def test_mirror_copies_event_files_alone_and_a_grown_one_again_into_the_same_file(storage: Any, tmp_path: Path) -> None:
    bucket = storage.bucket("bucket")
    for name in (EVENTS, "model/checkpoint"):
        bucket.blob(f"grown/{name}").upload_from_string(b"one")
    bucket.blob("grown_not/tfevents").upload_from_string(b"somebody else's")
    mirror = EventFileMirror("gs://bucket/grown", tmp_path, storage)
    assert mirror.poll(NEVER) == 1
    copy = tmp_path / EVENTS
    assert copy.read_bytes() == b"one"
    with copy.open("rb") as open_already:
        bucket.blob(f"grown/{EVENTS}").upload_from_string(b"one, two")
        mirror.poll(NEVER)
        assert open_already.read() == b"one, two"
    bucket.blob(f"grown/{EVENTS}").upload_from_string(b"anew")
    mirror.poll(NEVER)
    assert copy.read_bytes() == b"anew"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [copy]


class ListsWhatLiesOutside:
    def list_blobs(self, *_: object, **__: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=f"dir/{name}", size=3) for name in ("../tfevents", "/tmp/tfevents")]


def test_mirror_writes_nothing_outside_its_directory(tmp_path: Path) -> None:
    assert EventFileMirror("gs://bucket/dir", tmp_path, ListsWhatLiesOutside()).poll(NEVER) == 0


class FailsTwiceAfterEachSuccess(EventFileMirror):
    """Stops after six polls."""

    def __init__(self) -> None:
        self.url = "gs://bucket/dir"
        self._polls = 0

    def poll(self, stop: threading.Event) -> int:
        self._polls += 1
        if self._polls == 6:
            stop.set()
        if self._polls % 3:
            raise OSError("away")
        return 0


def test_follow_reports_an_unavailable_storage_once_and_goes_on() -> None:
    printed: list[str] = []
    follow(FailsTwiceAfterEachSuccess(), threading.Event(), printed.append, pause_s=0)
    warning = "WARNING: the event files of gs://bucket/dir cannot be read: away. Trying again..."
    none_yet = "There are no event files in gs://bucket/dir yet. Curves appear when the job writes them."
    assert printed == [warning, none_yet, warning]


class Shown:
    """`jobs tensorboard j` as a process of its own, once it has printed its address."""

    def __init__(self, environment: dict[str, str]) -> None:
        (self.port,) = free_ports(1)
        words = ["jobs", "tensorboard", "j", "--port", str(self.port)]
        command = [sys.executable, "-m", "trainyard_cli", *words]
        self._process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        printed = ""
        while f"http://127.0.0.1:{self.port}/" not in printed:
            printed = self._process.stderr.readline()
            assert printed, "it ended"
        self.children = psutil.Process(self._process.pid).children(recursive=True)

    def end(self, number: int) -> int:
        self._process.send_signal(number)
        self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode

    def left(self) -> list[psutil.Process]:
        return [child for child in self.children if _lives(child)]

    def close(self) -> None:
        for child in self.left():
            child.kill()
        self.end(signal.SIGKILL)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def shown() -> Iterator[Callable[[], Shown]]:
    started: list[Shown] = []

    def start() -> Shown:
        started.append(Shown(dict(os.environ)))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 130), (signal.SIGHUP, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_tensorboard_ends_with_the_command_however_that_ends(
    script: ScriptedServer,
    fake: Callable[[str], None],
    shown: Callable[[], Shown],
    tmp_path: Path,
    number: int,
    code: int,
) -> None:
    fake(STAYS)
    script.answers = [answer(tmp_path)]
    running = shown()
    assert len(running.left()) == 1
    assert running.end(number) == code
    until(lambda: not running.left())


def test_copies_of_gs_are_removed_when_the_command_ends(
    script: ScriptedServer,
    fake: Callable[[str], None],
    shown: Callable[[], Shown],
    storage: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake(STAYS)
    storage.bucket("bucket").blob(f"removed/{EVENTS}").upload_from_string(b"loss")
    script.answers = [answer("gs://bucket/removed")]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    running = shown()
    until(lambda: list(temporary.glob(f"*/{EVENTS}")))
    assert running.end(signal.SIGINT) == 130
    assert list(temporary.iterdir()) == []


def test_tensorboard_itself_shows_what_arguments_name_on_gs_beside_the_job_dir(
    script: ScriptedServer, shown: Callable[[], Shown], storage: Any, tmp_path: Path
) -> None:
    from tensorboardX import SummaryWriter  # imports grpc

    directory = tmp_path / "written"
    with SummaryWriter(str(directory / "eval")) as writer:
        writer.add_scalar("loss", 0.5, 1)
    for path in (directory / "eval").iterdir():
        storage.bucket("bucket").blob(f"argument/eval/{path.name}").upload_from_filename(str(path))
    script.answers = [answer(directory, "--log_dir=gs://bucket/argument", "--data_dir=gs://bucket/data")]
    running = shown()

    def runs() -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{running.port}/data/runs") as reply:
            return json.load(reply)

    until(lambda: len(runs()) > 1)
    assert runs() == ["job-dir/eval", "log_dir/eval"]
    assert running.end(signal.SIGINT) == 130


def test_job_dir_elsewhere_is_named(
    typed: Type, script: ScriptedServer, fake: Callable[[str], None], storage: Any
) -> None:
    fake(ENDS_WITH_THE_FIRST_EVENT_FILE)
    storage.bucket("bucket").blob(f"elsewhere/{EVENTS}").upload_from_string(b"loss")
    script.answers = [answer("/no/such/job-dir", "--model-dir", "gs://bucket/elsewhere")]
    printed = typed()
    assert (printed.code, f"saw {EVENTS}: loss" in printed.err) == (0, True), printed.err
    assert "The directory /no/such/job-dir cannot be read on this machine" in printed.err
