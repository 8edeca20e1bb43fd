"""`jobs tensorboard`: TensorBoard in a child process, on the places of a job's event files.

TensorBoard reads gs:// only with TensorFlow installed, and never from the storage emulator. So event files on gs://
are copied into a temporary directory while it runs.
"""

import ctypes
import errno
import importlib.util
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard_cli.capabilities.tensorboard.event_mirror import EVENT_FILE_INFIX, EventFileMirror, followed, none_yet
from trainyard_cli.capabilities.tensorboard.places import EventPlace, chosen, places_of
from trainyard_cli.local.connect import notify
from trainyard_cli.output.log.follow import INTERRUPTED
from trainyard_cli.submission.upload import cloud_storage
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument
from trainyard_protocol.net.gcs import problem_of

FIRST_PORT = 6006

_PORTS = 100
_GRACE_S = 10.0
_PR_SET_PDEATHSIG = 1
_ADDRESS = re.compile(r"TensorBoard \S+ at (http\S+) \(Press CTRL\+C to quit\)")
_NOISE = (
    "TensorFlow installation not found",
    "experimental fast data loading",
    "--load_fast=false",
    "github.com/tensorflow/tensorboard/issues/4784",
)
_libc = ctypes.CDLL(None)


def show(detail: JobDetail, emulator: str, *, host: str, port: int | None, logdirs: Sequence[str] = ()) -> int:
    """Run TensorBoard until it ends and return its exit code; 130 after Ctrl-C or SIGTERM, which end it.

    `emulator` is the address of the local storage emulator, "" for Google's (or STORAGE_EMULATOR_HOST). `logdirs` are
    shown in place of the job's own. Raises FailedPrecondition if the job's event files cannot be read on this machine,
    InvalidArgument for a logdir that is none.
    """
    shown = _readable(detail, chosen(logdirs) if logdirs else places_of(detail), is_chosen=bool(logdirs))
    if importlib.util.find_spec("tensorboard") is None:
        local = [shlex.quote(place.location) for place in shown if not place.is_remote]
        elsewhere = f" On a machine that has it: `tensorboard --logdir {local[0]}`." if local else ""
        raise FailedPrecondition(f"TensorBoard is not installed: `pip install 'trainyard[tensorboard]'`.{elsewhere}")
    port = usable_port(host, port)
    try:
        with _interrupted_by_signals(), _together(shown) as (directory, copies):
            client = cloud_storage(emulator).client() if copies else None
            mirrors = [EventFileMirror(place.location, copy, client) for place, copy in copies]
            for place in shown:
                if not place.is_remote and next(Path(place.location).rglob(f"*{EVENT_FILE_INFIX}*"), None) is None:
                    notify(none_yet(place.location))
            with _started(command(directory, host, port)) as process, ExitStack() as stack:
                for mirror in mirrors:
                    stack.enter_context(followed(mirror, notify))
                return _to_its_end(process, str(detail.job["jobId"]))
    except KeyboardInterrupt:
        notify("\nTensorBoard was stopped.")
        return INTERRUPTED


@contextmanager
def _together(places: Sequence[EventPlace]) -> Iterator[tuple[str, list[tuple[EventPlace, Path]]]]:
    """The directory that TensorBoard gets for these places, and where the copies of those on gs:// go. Of several it is
    one with a directory, or a link to one, for each."""
    if len(places) == 1 and not places[0].is_remote:
        yield places[0].location, []
        return
    with TemporaryDirectory(prefix="trainyard-tensorboard-", ignore_cleanup_errors=True) as scratch:
        root = Path(scratch)
        copies = []
        for place in places:
            path = root if len(places) == 1 else root / place.name
            if place.is_remote:
                path.mkdir(exist_ok=True)
                copies.append((place, path))
            else:
                path.symlink_to(Path(place.location).absolute())
        yield scratch, copies


def command(directory: str, host: str, port: int) -> list[str]:
    """TensorBoard's command line. `-P` keeps files of the current directory from shadowing its modules. Pure."""
    program = [sys.executable, "-P", "-m", "tensorboard.main"]
    return [*program, "--logdir", directory, "--host", host, "--port", str(port), "--reload_interval", "5"]


def user_message(line: str, job: str) -> str:
    """The message for the user in a line of TensorBoard's stderr; "" for noise. Pure."""
    if ready := _ADDRESS.search(line):
        return f"TensorBoard shows job [{job}] at {ready[1]} (Ctrl-C ends it; the job continues)."
    return "" if any(noise in line for noise in _NOISE) else line.rstrip()


def usable_port(host: str, port: int | None) -> int:
    """The given port, or the first free one from 6006 upwards.

    Raises FailedPrecondition if no port is free, InvalidArgument if the host is not an address of this machine.
    """
    candidates = range(FIRST_PORT, FIRST_PORT + _PORTS) if port is None else (port,)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in candidates:
        try:
            socket.create_server((host, candidate), family=family).close()
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise InvalidArgument(
                    f"argument --host: {host} is not an address of this machine ({error.strerror}). Use 127.0.0.1, "
                    "or 0.0.0.0 for all addresses."
                ) from error
        else:
            return candidate
    unavailable = f"Port {port}" if port else f"Every port from {candidates[0]} to {candidates[-1]}"
    raise FailedPrecondition(f"{unavailable} of {host} is in use or not allowed. Choose another with --port.")


@contextmanager
def _started(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """Run a child process that ends with the context, or with this process however it ends."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        preexec_fn=_end_with_parent,  # no thread has been started yet
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_GRACE_S)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _to_its_end(process: "subprocess.Popen[str]", job: str) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if text := user_message(line, job):
            notify(text)
    code = process.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP, unless ignored, as Ctrl-C."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _readable(detail: JobDetail, places: Sequence[EventPlace], *, is_chosen: bool) -> list[EventPlace]:
    """The places that can be read here. Those of the job that cannot are named, where there are others. Raises
    FailedPrecondition where there is no other, InvalidArgument for one that the user has chosen."""
    readable = [place for place in places if _is_readable(place)]
    for place in (place for place in places if place not in readable):
        if is_chosen:
            raise InvalidArgument(f"argument --logdir: {_refusal(place)}")
        refusal = _elsewhere(detail, place.location)
        if not readable:
            raise FailedPrecondition(refusal)
        notify(refusal)
    return readable


def _is_readable(place: EventPlace) -> bool:
    if place.is_remote:
        return not problem_of(place.location)
    path = Path(place.location)
    with suppress(OSError):
        return path.is_absolute() and os.access(path, os.R_OK | os.X_OK) and path.is_dir()
    return False


def _refusal(place: EventPlace) -> str:
    """The rest of a sentence about a logdir that is none."""
    if place.is_remote:
        return f"{place.location} {problem_of(place.location)}"
    return f"{place.location} must be gs://BUCKET/DIRECTORY, or a directory of this machine that can be read."


def _elsewhere(detail: JobDetail, directory: str) -> str:
    agent = f" (agent {detail.runs[-1].agent})" if detail.runs else ""
    return (
        f"The directory {directory} cannot be read on this machine. It is on the machine where job "
        f"[{detail.job.get('jobId')}] runs{agent}, or the job has not created it yet. On that machine, run "
        f"`tensorboard --logdir {shlex.quote(directory)}`."
    )
