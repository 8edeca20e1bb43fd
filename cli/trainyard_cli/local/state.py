"""State directory of the local service: paths, tokens, ports and processes. Readable only by its owner."""

import fcntl
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

from trainyard_cli.local.listening import own_address, url_of
from trainyard_cli.local.options import Options, ProcessName
from trainyard_cli.settings import Server, read_token
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, Unavailable
from trainyard_protocol.net.gcs import PROXY_ROOTS
from trainyard_protocol.net.loopback import IPV4, free_port, is_free, user_of
from trainyard_protocol.net.private_files import create_private

PROCESSES: tuple[ProcessName, ...] = ("server", "storage", "agent")

PREFERRED_SERVER_PORT = 8470
PREFERRED_STORAGE_PORT = 8471
PREFERRED_GOOGLE_PORT = 8472
STOP_GRACE_S = 10.0
RESTORED_QUOTAS = "restored-quotas.yaml"
"""The quotas of a backup, in the state directory that was made of it."""

DEFAULT_BUCKETS = "gs://trainyard-{project}"
"""The buckets of jobs without a job-dir, where other machines can join."""


_MAX_LOG_BYTES = 16 * 2**20
_CREATE_TIME_TOLERANCE_S = 1.0


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process of the service. `created` distinguishes it from a later one with the same pid."""

    pid: int
    created: float
    command: tuple[str, ...]

    def alive(self) -> bool:
        import psutil  # here, since it takes a tenth of a command's start

        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            # Setting the clock changes the creation time, not the command line.
            same_time = abs(process.create_time() - self.created) < _CREATE_TIME_TOLERANCE_S
            return same_time or tuple(process.cmdline()) == self.command
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:  # another user's process: the pid was reused
            return False


class LocalState:
    """One state directory. Nothing is written before `create()`."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.token_file = self.root / "token"
        self.agent_token_file = self.root / "agent-token"
        self.storage_token_file = self.root / "storage-token"
        self.user = user_name()
        self.jobs = self.root / "jobs"
        self.names = self.root / "google-names"
        self.google_roots = self.names / "roots.pem"  # written by trainyard_storage.tensorflow
        self.quota_file = self.root / "quotas.yaml"
        self.ca_file = self.root / "server" / "ca.pem"  # written by the server
        self._options_file = self.root / "local.json"

    @property
    def secret_files(self) -> tuple[Path, ...]:
        """The files that hold a token or a key each, as text."""
        keys = (self.root / "server" / "keys").glob("*")
        return tuple(path for path in (*self._token_files, *keys) if path.is_file())

    @property
    def agent_file(self) -> Path:
        """The identity of the agent of this machine, with its key."""
        return self.root / "agent" / "agent.json"

    @property
    def agent_id(self) -> str:
        """The id of the agent of this machine; "" before it has made one."""
        try:
            return str(json.loads(self.agent_file.read_text(encoding="utf-8"))["agent_id"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    @property
    def backup_files(self) -> tuple[Path, ...]:
        """The files of a backup beside the data directories: tokens and options."""
        return (*self._token_files, self._options_file)

    @property
    def _token_files(self) -> tuple[Path, ...]:
        return self.token_file, self.agent_token_file, self.storage_token_file

    def exists(self) -> bool:
        return self._options_file.is_file()

    def create(self) -> None:
        """Create the directory and the tokens if missing. Idempotent.

        Raises FailedPrecondition for another user's directory or one with foreign files.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.root.stat().st_uid != os.geteuid():
                raise FailedPrecondition(f"The state directory {self.root} belongs to another user.")
            if not self.exists() and not self.token_file.is_file() and any(self.root.iterdir()):
                self._refuse_if_foreign()
            self.root.chmod(0o700)
            for name in ("run", "log", "jobs"):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
            for path in (self.token_file, self.agent_token_file, self.storage_token_file):
                _make_token(path)
        except OSError as error:
            raise self._unusable(error) from error

    def options(self) -> Options:
        """Options of the last `up`, or the defaults. Damaged values become defaults.

        Raises FailedPrecondition if the file cannot be read.
        """
        try:
            data = json.loads(self._options_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return Options()
        except OSError as error:
            raise self._unusable(error) from error
        return Options.stored(data)

    def save(self, options: Options) -> None:
        _write_private(self._options_file, json.dumps(asdict(options), indent=2))

    def link_quotas(self, path: str) -> None:
        """Make the server's quota file a link to `path`; without one it is empty."""
        if not path:
            self.quota_file.unlink(missing_ok=True)  # not its target
            _write_private(self.quota_file, "{}")
            return
        link = self.root / f".{self.quota_file.name}.{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        link.replace(self.quota_file)

    def server(self) -> Server | None:
        """The local server's address and token, running or not; None before the first start."""
        port = self.options().server_port
        if not port or not self.token_file.is_file():
            return None
        return Server(f"http://{IPV4}:{port}", read_token(self.token_file), local=True)

    def network_server(self) -> Server | None:
        """The running server as other machines reach it; None if it listens on loopback alone."""
        server, options, running = self.server(), self.options(), self.process("server")
        if server is None or running is None or not options.listen or options.listen not in running.command:
            return None
        return Server(url_of(options), server.token, ca_file=self.ca_file)

    def check_port(self) -> None:
        """Raises Unavailable while another user listens on the server's port, who would get the token."""
        port = self.options().server_port
        user = user_of(IPV4, port)
        if user is not None and user != self.root.stat().st_uid:
            raise Unavailable(
                f"Port {port} of the local server belongs to another user of this machine (user id {user}), so no "
                "token is sent there. `trainyard down`, then `trainyard up`, takes another port."
            )

    def storage_url(self) -> str:
        """The address of gs://, with its secret; without it before the first start."""
        secret = f"/{read_token(self.storage_token_file)}" if self.storage_token_file.is_file() else ""
        return f"http://{IPV4}:{self.options().storage_port}{secret}"

    def process(self, name: ProcessName) -> ProcessRecord | None:
        """The process with that name, if alive."""
        process = self._recorded(name)
        return process if process is not None and process.alive() else None

    def crashed(self, name: ProcessName) -> str:
        """A process that ended without `stop`, as `process 123`; "" if none did."""
        if not self._pid_file(name).exists() or self.process(name) is not None:
            return ""
        process = self._recorded(name)
        return f"process {process.pid}" if process else "an unreadable process record"

    def _recorded(self, name: ProcessName) -> ProcessRecord | None:
        try:
            data = json.loads(self._pid_file(name).read_text(encoding="utf-8"))
            return ProcessRecord(int(data["pid"]), float(data["created"]), tuple(data["command"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def start(
        self, name: ProcessName, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a process in its own session, which outlives this one; output goes to `log_file(name)`."""
        import psutil

        log = self.log_file(name)
        if log.is_file() and log.stat().st_size > _MAX_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        with _open_private(log, "ab") as output:
            started = subprocess.Popen(
                command,
                cwd=self.root,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        record = {"pid": started.pid, "created": psutil.Process(started.pid).create_time(), "command": list(command)}
        _write_private(self._pid_file(name), json.dumps(record))
        return started

    def stop(self, name: ProcessName) -> ProcessRecord | None:
        """Send SIGTERM, and SIGKILL after ten seconds. Returns the process; None if none was alive."""
        process = self.process(name)
        if process is not None:
            _end(process.pid, STOP_GRACE_S)
        self._pid_file(name).unlink(missing_ok=True)
        return process

    def log_file(self, name: str) -> Path:
        return self.root / "log" / f"{name}.log"

    def log_size(self, name: str) -> int:
        with suppress(OSError):
            return self.log_file(name).stat().st_size
        return 0

    def log_tail(self, name: str, lines: int = 15, after: int = 0) -> str:
        """The last lines after the first `after` bytes, or of the whole log if it was rotated."""
        with suppress(OSError), self.log_file(name).open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 2**16, after if after <= end else 0))
            text = file.read().decode("utf-8", "replace")
            return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-lines:])
        return ""

    @contextmanager
    def lock(self, notify: Callable[[str], None]) -> Iterator[None]:
        """Lock for `up` and `down`. `notify` gets a line if it is held by another process."""
        with _open_private(self.root / "lock", "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                notify("Waiting for another `trainyard up` or `down` to finish...")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def with_ports(self, options: Options) -> Options:
        """The options with ports: the last ones, else the preferred ones, else free ones.

        Raises Unavailable if another program uses a port that running replicas may depend on.
        """
        server = self._port("server", options.server_port, PREFERRED_SERVER_PORT)
        storage = self._port("storage", options.storage_port, PREFERRED_STORAGE_PORT)
        return replace(options, server_port=server, storage_port=storage)

    def _port(self, name: ProcessName, current: int, preferred: int) -> int:
        if current:
            if self.process(name) or is_free(current):
                return current
            if any(self.process(other) for other in PROCESSES):
                raise Unavailable(
                    f"Another program uses port {current} of the local {name}. End that program, or run "
                    "`trainyard down` first: the next `trainyard up` then chooses another port."
                )
        return preferred if is_free(preferred) else free_port()

    def _pid_file(self, name: ProcessName) -> Path:
        return self.root / "run" / f"{name}.json"

    def _unusable(self, error: OSError) -> FailedPrecondition:
        return FailedPrecondition(
            f"The state directory {self.root} cannot be used: {error.strerror}. "
            "Choose another with --state-dir or TRAINYARD_STATE_DIR."
        )

    def _refuse_if_foreign(self) -> None:
        """Raises FailedPrecondition if the directory has files that are not the service's, crash logs included."""
        ours = {"crash", "run", "log", "jobs", "lock", "token", "agent-token", "server", "agent", "gcs"}
        ours |= {self.quota_file.name, self.storage_token_file.name, "google", self.names.name}
        ours.add(RESTORED_QUOTAS)
        foreign = sorted(path.name for path in self.root.iterdir() if path.name not in ours)
        if foreign:
            raise FailedPrecondition(
                f"{self.root} is not a state directory: it contains {foreign[0]!r}. Give an empty or new directory."
            )


def user_name() -> str:
    """Owner of locally submitted jobs: this user's name in allowed characters; "" if it has none."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container may run as a uid without a name
        return ""
    return re.sub(r"[^A-Za-z0-9_.@+-]+", "-", name, flags=re.ASCII).lstrip("_.@+-")[:128]


def check_cpus(text: str, usable: Set[int]) -> None:
    """Check a CPU list such as `0,2-5` against the usable CPUs. Raises InvalidArgument. Pure."""
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part, re.ASCII)
        if match is None:
            raise InvalidArgument(f"argument --cpus: {part.strip()!r} is not a CPU number or range such as 0,2-5.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InvalidArgument(f"argument --cpus: the range {part.strip()} is reversed.")
        refused = next((cpu for cpu in range(first, last + 1) if cpu not in usable), None)
        if refused is not None:
            raise InvalidArgument(
                f"argument --cpus: CPU {refused} is not available to this process; available: "
                f"{', '.join(map(str, sorted(usable)))}."
            )


def commands(state: LocalState, options: Options) -> dict[ProcessName, list[str]]:
    """The command lines of the three processes. Raises InvalidArgument for an address that is not this machine's."""
    server = [
        *(sys.executable, "-m", "trainyard_server"),
        *("--data-dir", str(state.root / "server")),
        *("--host", IPV4, "--port", str(options.server_port)),
        *("--token-file", f"admin{':' if state.user else ''}{state.user}={state.token_file}"),
        *("--token-file", f"agent={state.agent_token_file}"),
    ]
    server += _files_shown(state, options)
    server += ["--backup-storage", str(state.root / "gcs")]
    for path in state.backup_files:
        server += ["--backup-file", str(path)]
    server += ["--one-user", "--default-job-dir", str(state.jobs), "--check-packages"]
    server += ["--quotas", str(state.quota_file), *options.flags("server")]
    if options.server_settings:
        server += ["--settings", options.server_settings]
    if options.google_port:
        server += ["--google-port", str(options.google_port)]
    agent = [
        *(sys.executable, "-m", "trainyard_agent"),
        *("--server", f"http://{IPV4}:{options.server_port}"),
        *("--token-file", str(state.agent_token_file)),
        *("--state-dir", str(state.root / "agent"), "--one-user"),
        *("--replica-env", "STORAGE_EMULATOR_HOST"),  # the value has a secret: `environment`
        *("--replica-env", f"{PROXY_ROOTS}={state.google_roots}"),
        *options.flags("agent"),
    ]
    if options.listen:
        agent += ["--address", own_address(options.listen)]
    if options.runtime != "process":
        agent += ["--pull", options.pull, "--container-user", options.container_user]
        import tempfile

        shared = [Path(options.shared_job_dirs)] if options.shared_job_dirs else []
        for root in (state.jobs, Path.home(), Path(tempfile.gettempdir()), *shared):
            agent += ["--job-dir-root", str(root)]
    storage = [
        *(sys.executable, "-m", "trainyard_storage.emulator"),
        *("--data-dir", str(state.root / "gcs"), "--port", str(options.storage_port)),
        *("--secret-file", str(state.storage_token_file), "--names-dir", str(state.names)),
    ]
    if options.runtime != "process":
        storage += ["--for-containers", "--server", f"http://{IPV4}:{options.server_port}"]
        agent += ["--tracking-url", "storage"]
    return {"server": server, "storage": storage, "agent": agent}


def _files_shown(state: LocalState, options: Options) -> list[str]:
    """The server's flags of job-dirs. A server of this machine alone runs as its only user, and may read what that user
    may. One that others reach shows its own directories of jobs, and those that machines share."""
    if not options.listen:
        return ["--job-dir-root", "/", "--job-dir-root", "gs://"]
    flags = ["--https-address", options.listen, "--job-dir-root", str(state.jobs)]
    if not options.shared_job_dirs:
        return [*flags, "--new-default-job-dir", DEFAULT_BUCKETS]
    shared = options.shared_job_dirs
    return [*flags, "--job-dir-root", shared, "--shared-job-dirs", shared, "--new-default-job-dir", shared]


def stop_all_command(state: LocalState) -> list[str]:
    return [sys.executable, "-m", "trainyard_agent", "--state-dir", str(state.root / "agent"), "--stop-all"]


def environment(base: Mapping[str, str], storage_url: str) -> dict[str, str]:
    """Environment of the three processes: without Trainyard's own variables, with the address of gs://. Pure."""
    inherited = {name: value for name, value in base.items() if not name.startswith(("TRAINYARD_", "_TRAINYARD_"))}
    return {**inherited, "STORAGE_EMULATOR_HOST": storage_url}


def detach(started: subprocess.Popen[bytes]) -> None:
    """Suppress Popen's warning about a child that outlives it."""
    if started.poll() is None:
        started.returncode = 0


def _end(pid: int, grace_s: float) -> None:
    import psutil

    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        process = psutil.Process(pid)
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline:
            if process.status() == psutil.STATUS_ZOMBIE:
                return
            with suppress(psutil.TimeoutExpired):
                process.wait(timeout=0.1)
                return
        process.kill()
        with suppress(psutil.TimeoutExpired):
            process.wait(timeout=grace_s)


def _make_token(path: Path) -> None:
    """Write a new token unless there is one. Safe against concurrent calls."""
    if path.is_file() and path.stat().st_size:
        return
    import secrets

    path.unlink(missing_ok=True)
    with suppress(FileExistsError), create_private(path) as file:
        file.write(secrets.token_urlsafe(32).encode() + b"\n")


def _write_private(path: Path, text: str) -> None:
    """Replace a file atomically."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with _open_private(draft, "wb") as file:
        file.write(f"{text}\n".encode())
    draft.replace(path)


def _open_private(path: Path, mode: Literal["ab", "wb"]) -> BinaryIO:
    """Open for writing. A new file is readable only by its owner."""
    how = os.O_APPEND if mode == "ab" else os.O_TRUNC
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600), mode)
