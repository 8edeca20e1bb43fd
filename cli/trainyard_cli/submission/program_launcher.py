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
_PR_SET_PDEATHSIG = 1

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
    child = os.fork()
    if child == 0:
        _die_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _become(command, directory, [root / name for name in program["path"]])
    status = _wait_for(child)
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


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies, where Python can ask for it."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(1)


def _wait_for(child: int) -> int:
    """The status with which the child ended. Signals that come meanwhile are for it.

    They are blocked and waited for, so that nobody takes this process for one with a handler. Where a supervisor has
    started the replica, it signals all processes of the group, and the child has the signal already.
    """
    with contextlib.suppress(OSError):  # only the name is missing then
        Path("/proc/self/comm").write_text(NAME, encoding="utf-8")
    is_in_group = "TRAINYARD_REPLICA" in os.environ
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        number = signal.sigwait([*_FORWARDED, signal.SIGCHLD])
        if number != signal.SIGCHLD and not is_in_group:
            os.kill(child, number)


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
