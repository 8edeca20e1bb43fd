"""The command `python -m trainyard_server`: parses settings and runs uvicorn until SIGTERM."""

import argparse
import fcntl
import ipaddress
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.time_parsing import parse_duration
from trainyard_server.app import create_app
from trainyard_server.config.settings import Settings
from trainyard_server.domain.permissions import Role, Token, is_name
from trainyard_server.storage.db.engine import UnusableUrl
from trainyard_server.storage.events.notifier import Notifier
from trainyard_server.storage.failures import DatabaseError

_BACKLOG = 2048
_PROXIES = ["127.0.0.1", "::1"]  # trusted for X-Forwarded-Proto and X-Forwarded-For
_DRAIN_S = 5  # for pending requests at shutdown


class UsageError(Exception):
    """An invalid command line, or a file or port that cannot be used. The message is one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Exit codes: 0 stopped, 1 could not start, 2 invalid command line."""
    options = _parser().parse_args(arguments)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        _serve(options)
    except UsageError as error:
        print(f"trainyard_server: {error}", file=sys.stderr)
        return 1
    return 0


def _serve(options: argparse.Namespace) -> None:
    settings = _settings(options)
    with ExitStack() as stack:
        listener = stack.enter_context(_listen(options.host, options.port))
        try:
            stack.callback(os.close, _lock(settings.data_dir, shared=bool(settings.database)))
            app = create_app(settings)
        except TrainyardError as error:
            raise UsageError(error.message) from error
        except UnusableUrl as error:
            raise UsageError(f"--database cannot be used: {error}.") from error
        except (OSError, DatabaseError) as error:
            reason = getattr(error, "strerror", None) or str(getattr(error, "orig", error)).strip()
            database = settings.database and isinstance(error, DatabaseError)
            resource = "database" if database else f"data directory {settings.data_dir}"
            raise UsageError(f"cannot use the {resource}: {reason}.") from error
        _run(app, listener)


def _run(app: FastAPI, listener: socket.socket) -> None:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_DRAIN_S,
        timeout_keep_alive=75,
        forwarded_allow_ips=_PROXIES,
    )
    _Server(config, app.state.use_cases.backend.notifier).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends long polls and event streams on a signal, so that no connection has to be aborted."""

    def __init__(self, config: uvicorn.Config, notifier: Notifier) -> None:
        super().__init__(config)
        self._notifier = notifier

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Requests a clean shutdown with exit status 0. A second Ctrl-C does not wait for it."""
        self._notifier.close()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainyard_server", description="The control plane of Trainyard.")
    defaults = Settings(data_dir=Path())
    parser.add_argument(
        "--data-dir", type=Path, required=True, help="the directory of database, logs and packages"
    )
    parser.add_argument(
        "--database",
        default="",
        metavar="URL",
        help="a PostgreSQL database, postgresql+psycopg://user:password@host/database, which several servers "
        "with the same data directory may share; default: SQLite in the data directory",
    )
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on; loopback only")
    parser.add_argument("--port", type=int, default=8470)
    parser.add_argument(
        "--token-file",
        action="append",
        default=[],
        metavar="ROLE[:NAME]=FILE",
        help="a file with the token of a viewer, submitter, admin or agent, and its owner, as in "
        "submitter:alice=FILE; once for each token",
    )
    parser.add_argument("--machine-types", type=Path, help="the site's own machine types (YAML)")
    parser.add_argument("--quotas", type=Path, help="what each project may use at the same time (YAML)")
    parser.add_argument(
        "--job-dir-root",
        action="append",
        default=[],
        metavar="DIRECTORY",
        help="job-dirs below this directory, or below this gs://BUCKET with the server's own credentials, may be "
        "shown; may be given several times. default: none",
    )
    parser.add_argument(
        "--default-job-dir",
        default="",
        metavar="DIRECTORY",
        help="a job without jobDir gets the directory PROJECT/JOB below this path or gs:// URL, named in its "
        "environment; default: none",
    )
    parser.add_argument("--lease-seconds", type=float, default=defaults.lease_s, help="default: %(default)s")
    parser.add_argument(
        "--log-quota",
        type=int,
        default=defaults.log_quota,
        metavar="BYTES",
        help="maximum size of the log of a job, 0 for no limit; default: %(default)s",
    )
    parser.add_argument(
        "--keep-jobs",
        default="all",
        metavar="DURATION",
        help="delete jobs so long after their end, such as 90d, with their logs; default: %(default)s",
    )
    parser.add_argument(
        "--keep-logs-gb",
        type=float,
        default=0.0,
        metavar="GB",
        help="maximum size of all logs together: beyond it those of ended jobs are removed, the oldest first, and the "
        "jobs stay; 0 for no limit; default: %(default)g",
    )
    parser.add_argument("--retries", type=int, default=defaults.retries, help="default: %(default)s")
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="default: %(default)s",
    )
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    if options.lease_seconds <= 0:
        raise UsageError(f"--lease-seconds must be above 0; this is {options.lease_seconds:g}.")
    if options.retries < 0:
        raise UsageError(f"--retries must be 0 or more; this is {options.retries}.")
    if not 0 <= options.keep_logs_gb < math.inf:
        raise UsageError(f"--keep-logs-gb must be 0 (no limit) or more; this is {options.keep_logs_gb:g}.")
    if options.log_quota < 0:
        raise UsageError(f"--log-quota must be 0 (no quota) or more bytes; this is {options.log_quota}.")
    return Settings(
        data_dir=options.data_dir,
        database=options.database,
        tokens=tuple(map(_token, options.token_file)),
        machine_types=options.machine_types,
        quotas=options.quotas,
        job_dir_roots=tuple(Path(root).absolute() for root in options.job_dir_root if not _is_bucket(root)),
        job_dir_buckets=tuple(filter(_is_bucket, options.job_dir_root)),
        default_job_dir=options.default_job_dir,
        storage_emulator=os.environ.get("STORAGE_EMULATOR_HOST", ""),
        lease_s=options.lease_seconds,
        retries=options.retries,
        log_quota=options.log_quota,
        keep_jobs_s=_keep_jobs(options.keep_jobs),
        keep_log_bytes=round(options.keep_logs_gb * 10**9) or None,
    )


def _keep_jobs(text: str) -> float | None:
    if text == "all":
        return None
    try:
        seconds = parse_duration(text).total_seconds()
    except ValueError as error:
        raise UsageError(f"--keep-jobs is `all`, or {error}.") from error
    if not seconds:
        raise UsageError("--keep-jobs must be above 0: a job that ends must be there to be read.")
    return seconds


def _is_bucket(root: str) -> bool:
    return root.startswith("gs://")


def _token(option: str) -> Token:
    who, separator, path = option.partition("=")
    role, named, name = who.partition(":")
    if not separator or role not in list(Role):
        roles = f"{', '.join(list(Role)[:-1])} or {list(Role)[-1]}"
        raise UsageError(
            f"--token-file takes ROLE=FILE or ROLE:NAME=FILE, the role being {roles}; this is {option!r}."
        )
    name = name if named else role
    if not is_name(name):
        raise UsageError(
            f"--token-file {option!r}: {name!r} is not a valid name: letters, digits, '_', '.', '@', '+' and '-'."
        )
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the {who} token: {error}.") from error
    if not token:
        raise UsageError(f"the {who} token in {path} is empty.")
    return Token(Role(role), name, token)


def _lock(data_dir: Path, *, shared: bool) -> int:
    """Lock the data directory until the process ends: exclusively with SQLite, shared with a shared database."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise UsageError(f"another server is using the data directory {data_dir}.") from error
    return lock


def _listen(host: str, port: int) -> socket.socket:
    """Bind the socket before anything is opened, so that a busy port is reported first."""
    address = "127.0.0.1" if host == "localhost" else host
    try:
        loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise UsageError(
            f"--host {host} is not a loopback address: the server speaks plain HTTP and listens on this machine only. "
            "Use 127.0.0.1, and a tunnel or a TLS proxy to reach it from elsewhere."
        )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on {host}:{port}: {reason}.") from error
    return listener
