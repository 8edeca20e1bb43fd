"""Launcher of a program: `python -m trainyard_program MODULE ARGS...`, the main module of the wheel of `program_wheel`.

It unpacks what was uploaded into a directory of the replica's own, starts the program there as a process of its own,
and at its end moves new and changed files to `outputs/TASK` of the job's directory. Signals, exit code and output are
the program's. It runs in the job's environment: it uses only the standard library, of Python 3.8 or later.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Callable, Iterator, Mapping, Sequence, Tuple  # noqa: UP035 - older Pythons need them

MAX_BYTES, MAX_FILES = 1 << 30, 10_000
"""Limits of what is kept of one replica, unless TRAINYARD_OUTPUTS_BYTES and TRAINYARD_OUTPUTS_FILES are set."""

NAME = "trainyard-keep"
"""The name of the process that waits for the script. The agent leaves it out of the stacks of a program."""

_CACHES = ("__pycache__", ".cache", ".ipynb_checkpoints", ".pytest_cache", ".mypy_cache", ".ruff_cache")
_PLAIN_IPYTHON = ("--no-banner", "--no-confirm-exit", "--colors=NoColor", "--HistoryManager.enabled=False")
_SHOWN = 5  # names in a message
_REQUEST_S = 60.0  # for a storage to take or give a block
_PARTIAL = ".trainyard-partial"
_FORWARDED = (*(signal.SIGTERM, signal.SIGINT, signal.SIGHUP), *(signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2))
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_GRACE_S = 30.0  # between SIGTERM and SIGKILL, unless TRAINYARD_GRACE_S is set
_KEEPING_S, _PART = 3.0, 0.75  # of the grace is for files to be kept; of a short one a quarter
_SPREAD_S = 1.0  # in which Slurm signals one process after the other
_NEVER, _LONG_S = float("inf"), 3600.0

_State = Tuple[int, int]  # noqa: UP006 - older Pythons need it
_Store = Callable[[Path, str], None]


def main() -> None:
    """Run the program, and end as it ended."""
    package = Path(__file__).resolve().parent
    program = json.loads((package / "program.json").read_text(encoding="utf-8"))
    module, *arguments = sys.argv[1:] or [program["module"]]
    job_dir = os.environ.get("TRAINYARD_JOB_DIR", "")
    # The agent appends it for every job with a jobDir, as AI Platform did.
    if not program["passes_job_dir"] and job_dir and arguments[-2:] == ["--job-dir", job_dir]:
        arguments = arguments[:-2]
    if program["kind"] == "dev":
        os.execv(sys.executable, [sys.executable, str(package / program["entry"]), *arguments])  # noqa: S606 - ours
    root = _working_directory()
    _unpack(package / "files.tar", root)
    before = {relative: _state(path) for relative, path in _files(root)}
    directory = root / program["directory"]
    directory.mkdir(parents=True, exist_ok=True)
    command = _command(program, module, package) + arguments
    sys.stdout.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*_FORWARDED, signal.SIGCHLD])
    parent = os.getpid()
    # A supervisor signals all of its group, this process and the program among them; an engine only this one.
    is_in_group = "TRAINYARD_REPLICA" in os.environ
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the program leaves behind becomes a child of this process
    child = os.fork()
    if child == 0:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it dies with this process
        if os.getppid() != parent:
            os._exit(1)
        if not is_in_group:
            os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _become(command, directory, [root / name for name in program["path"]])
    if not is_in_group:
        with contextlib.suppress(OSError):  # it has done so by now; a signal must not come before
            os.setpgid(child, child)
    status = wait_for_tree(child, None if is_in_group else child)
    try:
        _keep(root, before, job_dir)
    except Exception as error:  # noqa: BLE001 - the script's own end counts, whatever fails here
        _say(f"WARNING: trainyard: files of the working directory are lost: {error}")
    _end_as(status)


def _working_directory() -> Path:
    """An empty directory: `program` in the current one, or a temporary one where that may not be written."""
    directory = Path.cwd() / "program"
    try:
        directory.mkdir(0o700)
    except OSError:
        directory = Path(tempfile.mkdtemp(prefix="program-"))
    return directory


def _unpack(tar: Path, directory: Path) -> None:
    """Unpack the files, which may have any names and links."""
    with tarfile.open(tar, encoding="utf-8", errors="surrogateescape") as archive:
        # The default of later Pythons refuses what a checkout may have, such as links that lead nowhere.
        archive.extraction_filter = staticmethod(lambda member, _: member)
        archive.extractall(directory)  # noqa: S202 - written by `jobs submit`, for this job alone


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Relative and full paths of the files below a directory, without caches and links."""
    for parent, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name not in _CACHES)
        for path in (Path(parent, name) for name in sorted(files)):
            if not path.is_symlink() and path.is_file():
                yield path.relative_to(folder).as_posix(), path


def _state(path: Path) -> _State:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _command(program: Mapping[str, str], module: str, package: Path) -> list[str]:
    """The command of the program, before its arguments. Of a job that names another module than it was packed with,
    that module."""
    if module != program["module"]:
        return [sys.executable, "-m", module]
    kind, entry = program["kind"], program["entry"]
    if kind == "module":
        return [sys.executable, "-m", entry]
    file = os.path.relpath(entry, program["directory"] or ".")
    if kind == "shell":
        return [program["interpreter"], file]
    if kind == "notebook":
        return [sys.executable, str(package / "notebook.py"), file]
    if kind == "ipython":
        return [sys.executable, "-m", "IPython", *_PLAIN_IPYTHON, file, "--"]
    return [sys.executable, file]


def _become(command: list[str], directory: Path, modules: Sequence[Path]) -> None:
    """Execute the program in its directory. Never returns."""
    os.chdir(directory)
    os.environ["PWD"] = str(directory)
    os.environ.update(_variables_of_google_tools())
    scripts, path = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] != scripts:  # `python` in a shell script is this environment's
        os.environ["PATH"] = f"{scripts}{os.pathsep}{path}"
    if modules:
        inherited = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, modules), *([inherited] if inherited else [])])
    try:
        os.execvp(command[0], command)  # noqa: S606 - the user's own program
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}.\n")
        sys.stderr.flush()
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _variables_of_google_tools() -> dict[str, str]:
    """Variables by which gcloud and gsutil, which know no STORAGE_EMULATOR_HOST, find the service's gs://; none where
    they are not installed, or the program has its own."""
    address, _, secret = os.environ.get("STORAGE_EMULATOR_HOST", "").rpartition("/")
    if "://" not in address or "BOTO_CONFIG" in os.environ or not (shutil.which("gcloud") or shutil.which("gsutil")):
        return {}
    directory = Path(tempfile.mkdtemp(prefix="gcloud-"))
    (directory / "token").write_text(secret, encoding="ascii")
    # gsutil itself drops a part of the address. Without gcloud it fails at once, instead of trying for minutes.
    through = "[GSUtil]\nuse_gcloud_storage = True\n" if shutil.which("gcloud") else ""
    (directory / "boto").write_text(f"[Boto]\nnum_retries = 1\n{through}", encoding="ascii")
    return {
        "BOTO_CONFIG": str(directory / "boto"),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{address}/storage/v1/",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(directory / "token"),
        "CLOUDSDK_CORE_ACCOUNT": "trainyard",  # else gsutil lets gcloud use no token
        "CLOUDSDK_CORE_PROJECT": os.environ.get("CLOUD_ML_PROJECT_ID", ""),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
    }


def _prctl(option: int, value: int) -> None:
    """Set an attribute of this process, where Python can ask the kernel for it."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def wait_for_tree(child: int, group: int | None) -> int:
    """The status with which the child ended. After a stop, once all of its descendants have ended too, or the grace
    nearly has: a shell dies of SIGTERM while what it has started still saves.

    This process must be a subreaper, so that orphans become its children. Its signals must be blocked: they are waited
    for, so that nobody takes it for one with a handler. They are passed on to the process group `group`; None: that has
    them already.
    """
    with contextlib.suppress(OSError):  # only the name is missing then
        Path("/proc/self/comm").write_text(NAME, encoding="utf-8")
    waited_for = {*_FORWARDED, signal.SIGCHLD}
    grace_s = float(os.environ.get("TRAINYARD_GRACE_S") or _GRACE_S)
    patience_s = max(_PART * grace_s, grace_s - _KEEPING_S)
    status, give_up_at = None, _NEVER
    while True:
        ended, has_children = _reap(child)
        if ended is not None:
            status = ended
            if give_up_at == _NEVER and has_children and _is_stopped(status):
                give_up_at = time.monotonic() + patience_s
        left = _LONG_S if status is None else give_up_at - time.monotonic()
        if status is not None and (not has_children or give_up_at == _NEVER or left <= 0):
            if has_children and give_up_at != _NEVER and group is not None:  # else the supervisor says it
                _say(f"WARNING: trainyard: not ended {patience_s:g} s after SIGTERM, and killed: {_children()}")
            return status
        came = signal.sigtimedwait(waited_for, left)
        if came is None or came.si_signo == signal.SIGCHLD:
            continue
        if came.si_signo == signal.SIGTERM:
            give_up_at = min(give_up_at, time.monotonic() + patience_s)
        if group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, came.si_signo)


def _reap(child: int) -> tuple[int | None, bool]:
    """Reap what has ended. Returns the status of the child, if it was among that, and whether there are others."""
    status = None
    while True:
        try:
            pid, how = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status, False
        if not pid:
            return status, True
        if pid == child:
            status = how


def _is_stopped(status: int) -> bool:
    """Whether a SIGTERM is for this process too. Slurm sends one after the other: it may come a little later."""
    died_of_it = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
    return signal.sigtimedwait({signal.SIGTERM}, _SPREAD_S if died_of_it else 0) is not None


def _children() -> str:
    """The programs of the children of this process, for people."""
    names = []
    with contextlib.suppress(OSError):  # a kernel that does not list them
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split():
            words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
            names.append(f"{' '.join(words[:2])} (pid {pid})")
    return ", ".join(names[:_SHOWN])


def _end_as(status: int) -> None:
    """End with the same exit code, or of the same signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _keep(directory: Path, before: Mapping[str, _State], job_dir: str) -> None:
    """Move new and changed files to the job's directory, the smallest first, and say where they are."""
    changed = []
    for relative, path in _files(directory):
        with contextlib.suppress(FileNotFoundError):  # processes that the script has left may go on
            state = _state(path)
            if before.get(relative) != state:
                changed.append((state[1], relative))
    changed.sort()
    if not changed:
        return
    if not job_dir:
        _lost(changed, "the job has no directory: give it one with --job-dir")
        return
    target = f"{job_dir.rstrip('/')}/outputs/{_task()}"
    most_bytes = _limit("TRAINYARD_OUTPUTS_BYTES", MAX_BYTES)
    most_files = _limit("TRAINYARD_OUTPUTS_FILES", MAX_FILES)
    fitting, size = 0, 0
    for file_size, _ in changed[:most_files]:
        size += file_size
        if size > most_bytes:
            break
        fitting += 1
    stored, error = _store_all(directory, [relative for _, relative in changed[:fitting]], target)
    if stored:
        _say(f"trainyard: {_count(stored)} of the working directory, new or changed: {target}")
    if error:
        _lost(changed[stored:fitting], error)
    if changed[fitting:]:
        _lost(
            changed[fitting:],
            f"a replica's may have {_bytes(most_bytes)} and {most_files} files. Write such files to the directory "
            "TRAINYARD_JOB_DIR itself, which has no limit",
        )


def _store_all(directory: Path, names: Sequence[str], target: str) -> tuple[int, str]:
    """Move files to a directory or to gs://, in their order. Returns how many there are now, and what failed."""
    stored = 0
    try:
        store = _to_bucket(target) if target.startswith("gs://") else _to_directory(Path(target))
        for relative in names:
            store(directory / relative, relative)
            stored += 1
    except Exception as error:  # noqa: BLE001 - the program's own end counts, whatever fails here
        return stored, f"{type(error).__name__}: {error}"
    return stored, ""


def _to_directory(target: Path) -> _Store:
    def store(path: Path, relative: str) -> None:
        final = target / relative
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.replace(final)
        except OSError:  # another file system
            partial = final.parent / _PARTIAL
            shutil.copyfile(path, partial)
            shutil.copymode(path, partial)
            partial.replace(final)

    return store


def _to_bucket(target: str) -> _Store:
    """The service's own storage takes files by plain HTTP. Google's needs its client, for the credentials."""
    bucket, _, prefix = target[len("gs://") :].partition("/")
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if not emulator:
        from google.cloud import storage

        client = storage.Client(project=os.environ.get("CLOUD_ML_PROJECT_ID") or "trainyard").bucket(bucket)
        return lambda path, relative: client.blob(f"{prefix}/{relative}").upload_from_filename(str(path))

    import urllib.parse
    import urllib.request

    address = (emulator if "://" in emulator else f"http://{emulator}").rstrip("/")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def store(path: Path, relative: str) -> None:
        name = urllib.parse.quote(os.fsencode(f"{prefix}/{relative}"), safe="")
        url = f"{address}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size)}
        with path.open("rb") as content:
            request = urllib.request.Request(url, content, headers)  # noqa: S310 - the agent's address
            opener.open(request, timeout=_REQUEST_S).close()

    return store


def _task() -> str:
    """The task's name: `master-replica-0`, also of a chief."""
    task = json.loads(os.environ.get("CLUSTER_SPEC", "{}")).get("task", {"type": "master", "index": 0})
    return f"{task['type']}-replica-{task['index']}"


def _limit(variable: str, default: int) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isdecimal() else default


def _lost(files: Sequence[tuple[int, str]], reason: str) -> None:
    shown = [f"{relative} ({_bytes(size)})" for size, relative in sorted(files, reverse=True)[:_SHOWN]]
    names = ", ".join([*shown, *(["..."] if len(files) > _SHOWN else [])])
    _say(f"WARNING: trainyard: {_count(len(files))} of the working directory lost ({names}): {reason}.")


def _count(number: int) -> str:
    return f"{number} file{'' if number == 1 else 's'}"


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _say(text: str) -> None:
    """Print one line. It is on stdout: the last words of a program that fails are looked for on stderr."""
    print("".join(c if c.isprintable() else "?" for c in text), flush=True)


if __name__ == "__main__":
    main()
