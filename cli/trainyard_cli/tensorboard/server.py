"""`jobs tensorboard`: a job's curves. TensorBoard runs beside us, as a program of its own, on the job's directory.

It reads no storage emulator, and gs:// only where TensorFlow is. So the event files of a job on gs:// are copied
into a temporary directory for as long as somebody looks.
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
from typing import Any

from trainyard_cli.output.follow import INTERRUPTED
from trainyard_cli.submission.submit import Say
from trainyard_cli.submission.upload import storage_client
from trainyard_cli.tensorboard.event_mirror import MARK, Mirror, followed, none_yet
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument
from trainyard_protocol.views import JobDetail

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


def show(detail: JobDetail, emulator: str, *, host: str, port: int | None, say: Say) -> int:
    """Run TensorBoard until it ends, and return its exit code; 130 after Ctrl-C or SIGTERM, which end it.

    `emulator` is the address of the local service's storage, "" for Google's (or whatever STORAGE_EMULATOR_HOST
    names). Raises FailedPrecondition for a job whose curves cannot be shown here, saying what can be done.
    """
    job, job_dir = str(detail.job["jobId"]), job_dir_of(detail)
    remote = job_dir.startswith("gs://")
    if not remote:
        _check_directory(detail, job_dir)
    if importlib.util.find_spec("tensorboard") is None:
        elsewhere = "" if remote else f" Where it is: `tensorboard --logdir {shlex.quote(job_dir)}`."
        raise FailedPrecondition(
            f"TensorBoard is not installed here: `pip install 'trainyard[tensorboard]'`.{elsewhere}"
        )
    port = usable_port(host, port)
    try:
        with _interrupted_by_signals():
            if remote:
                with TemporaryDirectory(prefix="trainyard-tensorboard-", ignore_cleanup_errors=True) as copy:
                    mirror = Mirror(job_dir, Path(copy), _client(job_dir, emulator))
                    with _started(command(copy, host, port)) as process, followed(mirror, say):
                        return _to_its_end(process, job, say)
            if next(Path(job_dir).rglob(f"*{MARK}*"), None) is None:
                say(none_yet(job_dir))
            with _started(command(job_dir, host, port)) as process:
                return _to_its_end(process, job, say)
    except KeyboardInterrupt:
        say("\nTensorBoard has ended.")
        return INTERRUPTED


def job_dir_of(detail: JobDetail) -> str:
    """Raises FailedPrecondition for a job that has none. Pure."""
    job_dir = str(detail.job.get("trainingInput", {}).get("jobDir") or "")
    if not job_dir:
        raise FailedPrecondition(
            f"Job [{detail.job.get('jobId')}] has no jobDir, so it is not known where its event files are. Submit it "
            "with --job-dir, or run `tensorboard --logdir` with the directory that its program writes to."
        )
    return job_dir


def command(directory: str, host: str, port: int) -> list[str]:
    """Pure. `-P`: a file of the current directory is not taken for one of TensorBoard's modules."""
    program = [sys.executable, "-P", "-m", "tensorboard.main"]
    return [*program, "--logdir", directory, "--host", host, "--port", str(port), "--reload_interval", "5"]


def heard(line: str, job: str) -> str:
    """What of a line on TensorBoard's stderr is for the user: "" for noise. Pure."""
    if ready := _ADDRESS.search(line):
        return f"TensorBoard shows job [{job}] at {ready[1]} (Ctrl-C ends it; the job goes on)."
    return "" if any(noise in line for noise in _NOISE) else line.rstrip()


def usable_port(host: str, port: int | None) -> int:
    """The port if it is free, or else, where none is given, the first free one from 6006 upwards.

    Raises FailedPrecondition where none is free, InvalidArgument for a host that is none of this machine's.
    """
    wanted = range(FIRST_PORT, FIRST_PORT + _PORTS) if port is None else (port,)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in wanted:
        try:
            socket.create_server((host, candidate), family=family).close()
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise InvalidArgument(
                    f"argument --host: {host} is no address of this machine ({error.strerror}). Try 127.0.0.1, "
                    "or 0.0.0.0 for all of them."
                ) from error
        else:
            return candidate
    taken = f"Port {port}" if port else f"Every port from {wanted[0]} to {wanted[-1]}"
    raise FailedPrecondition(f"{taken} of {host} is taken or not allowed. Give another with --port.")


@contextmanager
def _started(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A process that ends at the end, and with us, however we end."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        preexec_fn=_end_with_parent,  # no thread of ours runs yet
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


def _to_its_end(process: "subprocess.Popen[str]", job: str, say: Say) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if text := heard(line, job):
            say(text)
    code = process.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP, where they are not ignored, do what Ctrl-C does."""
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
        f"There is no directory {job_dir} that can be read on this machine. It lies on the machine where job "
        f"[{detail.job.get('jobId')}] runs{agent}, or the job has not made it yet. There, "
        f"`tensorboard --logdir {shlex.quote(job_dir)}` shows it."
    )


def _client(job_dir: str, emulator: str) -> Any:
    from google.auth.exceptions import GoogleAuthError

    try:
        return storage_client(emulator)
    except (GoogleAuthError, OSError) as error:
        raise FailedPrecondition(f"{job_dir} cannot be read: {error}") from error
