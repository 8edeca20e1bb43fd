"""`jobs tensorboard`: TensorBoard in a child process, on the job's directory.

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard_cli.local.connect import notify
from trainyard_cli.output.log.follow import INTERRUPTED
from trainyard_cli.submission.upload import cloud_storage
from trainyard_cli.tensorboard.event_mirror import EVENT_FILE_INFIX, EventFileMirror, followed, none_yet
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument
from trainyard_protocol.views.views import JobDetail

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


def show(detail: JobDetail, emulator: str, *, host: str, port: int | None) -> int:
    """Run TensorBoard until it ends and return its exit code; 130 after Ctrl-C or SIGTERM, which end it.

    `emulator` is the address of the local storage emulator, "" for Google's (or STORAGE_EMULATOR_HOST). Raises
    FailedPrecondition if the job's event files cannot be read on this machine.
    """
    job, job_dir = str(detail.job["jobId"]), job_dir_of(detail)
    remote = job_dir.startswith("gs://")
    if not remote:
        _check_directory(detail, job_dir)
    if importlib.util.find_spec("tensorboard") is None:
        elsewhere = "" if remote else f" On a machine that has it: `tensorboard --logdir {shlex.quote(job_dir)}`."
        raise FailedPrecondition(f"TensorBoard is not installed: `pip install 'trainyard[tensorboard]'`.{elsewhere}")
    port = usable_port(host, port)
    try:
        with _interrupted_by_signals():
            if remote:
                with TemporaryDirectory(prefix="trainyard-tensorboard-", ignore_cleanup_errors=True) as copy:
                    mirror = EventFileMirror(job_dir, Path(copy), cloud_storage(emulator).client())
                    with _started(command(copy, host, port)) as process, followed(mirror, notify):
                        return _to_its_end(process, job)
            if next(Path(job_dir).rglob(f"*{EVENT_FILE_INFIX}*"), None) is None:
                notify(none_yet(job_dir))
            with _started(command(job_dir, host, port)) as process:
                return _to_its_end(process, job)
    except KeyboardInterrupt:
        notify("\nTensorBoard was stopped.")
        return INTERRUPTED


def job_dir_of(detail: JobDetail) -> str:
    """The job's directory. Raises FailedPrecondition if it has none. Pure."""
    if not detail.job_dir:
        raise FailedPrecondition(
            f"Job [{detail.job.get('jobId')}] has no jobDir, so its event files cannot be located. Submit it "
            "with --job-dir, or run `tensorboard --logdir` on the directory that its program writes to."
        )
    return detail.job_dir


def command(directory: str, host: str, port: int) -> list[str]:
    """TensorBoard's command line. `-P` keeps files of the current directory from shadowing its modules. Pure."""
    program = [sys.executable, "-P", "-m", "tensorboard.main"]
    return [*program, "--logdir", directory, "--host", host, "--port", str(port), "--reload_interval", "5"]


def user_message(line: str, job: str) -> str:
    """The message for the user in a line of TensorBoard's stderr; "" for noise. Pure."""
    if ready := _ADDRESS.search(line):
        return f"TensorBoard shows job [{job}] at {ready[1]} (Ctrl-C ends it; the job goes on)."
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


def _check_directory(detail: JobDetail, job_dir: str) -> None:
    with suppress(OSError):
        if Path(job_dir).is_absolute() and os.access(job_dir, os.R_OK | os.X_OK) and Path(job_dir).is_dir():
            return
    agent = f" (agent {detail.runs[-1].agent})" if detail.runs else ""
    raise FailedPrecondition(
        f"The directory {job_dir} cannot be read on this machine. It is on the machine where job "
        f"[{detail.job.get('jobId')}] runs{agent}, or the job has not created it yet. On that machine, run "
        f"`tensorboard --logdir {shlex.quote(job_dir)}`."
    )
