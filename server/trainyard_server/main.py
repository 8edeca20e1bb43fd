"""The command `python -m trainyard_server`: reads its settings and serves until SIGTERM."""

import fcntl
import gc
import logging
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard_protocol import service_log
from trainyard_protocol.answers.google import GOOGLES_DOMAIN, host_of, names_of
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.net import loopback
from trainyard_protocol.net.private_files import make_private
from trainyard_protocol.settings import SettingsReader, setting
from trainyard_server import web_server
from trainyard_server.app import create_app
from trainyard_server.capabilities.registry import CAPABILITIES
from trainyard_server.config.network import BACKLOG, NetworkSettings
from trainyard_server.config.settings import Settings
from trainyard_server.services.health.stopped import database_finding
from trainyard_server.storage import descriptors
from trainyard_server.storage.db.base.engine import UnusableUrl
from trainyard_server.storage.failures import DatabaseError, failure_of
from trainyard_server.web_server import TlsPort

if TYPE_CHECKING:
    from trainyard_storage.authority import OwnAuthority

CA_FILE = "ca.pem"
"""The public certificate of the authority for `--https-address`, in the data directory."""

logger = logging.getLogger(__name__)


class UsageError(Exception):
    """A setting, a file or a port that cannot be used. The message is one line."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: str = setting(
        "info", "the least severe lines of the log", "--log-level", choices=("debug", "info", "warning", "error")
    )
    format: str = setting(
        "text", "lines for people, or JSON objects for a log collector", "--log-format", choices=service_log.FORMATS
    )


READER = SettingsReader(
    "trainyard_server",
    "The control plane of Trainyard.",
    "TRAINYARD_SERVE_",
    {
        Settings: "",
        NetworkSettings: "network\nAn address other than loopback needs a certificate, or a TLS proxy in front of it.",
        **{item.options: item.heading for item in CAPABILITIES if item.options is not None},
        LogSettings: "",
    },
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Exit codes: 0 stopped, 1 could not start, 2 invalid command line."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    service_log.set_up("text")
    try:
        settings, network = read_settings(arguments)
        if settings.doctor:
            print(database_finding(settings).model_dump_json())
        else:
            _serve(settings, network)
    except (TrainyardError, UsageError) as error:
        print(f"trainyard_server: {error}", file=sys.stderr)
        return 1
    return 0


def read_settings(arguments: Sequence[str] | None) -> tuple[Settings, NetworkSettings]:
    """The settings of the command line, the environment and the file. Raises InvalidArgument."""
    given = READER.read(arguments, os.environ)
    log = LogSettings(**given[LogSettings])
    logging.getLogger().setLevel(log.level.upper())
    service_log.set_up("json" if log.format == "json" else "text")
    network = NetworkSettings(**given[NetworkSettings])
    network.check()
    settings = Settings(**given[Settings])
    hosts = [*settings.allowed_hosts, *network.names, *_google_names(network.universe_domain)]
    settings = replace(
        settings,
        allowed_hosts=tuple(hosts),
        google_domain=network.universe_domain,
        https_address=network.https_address,
        options=tuple(item.options(**given[item.options]) for item in CAPABILITIES if item.options is not None),
        storage_emulator=os.environ.get("STORAGE_EMULATOR_HOST", ""),
    )
    for options in settings.options:
        settings = options.applied(settings)
    if settings.rehearsal:
        settings = replace(settings, run_loops=False)
    if settings.one_user and "queued_jobs" not in given[Settings]:
        settings = replace(settings, queued_jobs=0)
    return settings, network


def _google_names(domain: str) -> Sequence[str]:
    return [*names_of(domain), *names_of(GOOGLES_DOMAIN)] if domain else []


def _serve(settings: Settings, network: NetworkSettings) -> None:
    descriptors.raise_limit()
    with ExitStack() as stack:
        try:
            # First, so that a busy port is reported before anything is opened.
            listeners = _listening(stack, network.host, network.port)
            google_listeners = _listening(stack, network.host, network.google_port) if network.google_port else []
            address = network.own_address
            port = listeners[0].getsockname()[1]
            network_listeners = _listening(stack, address, port) if address else []
            stack.callback(os.close, _lock(settings.data_dir, shared=bool(settings.database)))
            further = []
            if google_listeners:
                host = host_of(settings.google_domain)
                further.append(
                    TlsPort(google_listeners, _authority(settings, (host, GOOGLES_DOMAIN), _google_names(host)))
                )
                settings = replace(settings, google_ca=further[0].authority.ca)
            if not settings.public_url:
                settings = replace(settings, public_url=network.url_here(port))
            if network_listeners:
                names = (network.https_address,)  # not the address of a name, which may change
                further.append(TlsPort(network_listeners, _authority(settings, names, names)))
                (settings.data_dir / CA_FILE).write_text(further[-1].authority.ca, encoding="ascii")
            if settings.database:
                settings = replace(settings, peer_url=network.peer_url or network.url_here(port))
            app = create_app(settings)
        except UnusableUrl as error:
            raise UsageError(f"--database cannot be used: {error}.") from error
        except (OSError, DatabaseError) as error:
            reason = getattr(error, "strerror", None) or str(getattr(error, "orig", error)).strip()
            failure = failure_of(error)
            advice = f" {failure.remedy}" if failure is not None and failure.is_damage else ""
            database = settings.database and isinstance(error, DatabaseError)
            resource = "database" if database else f"data directory {settings.data_dir}"
            raise UsageError(f"cannot use the {resource}: {reason}.{advice}") from error
        gc.freeze()
        gc.enable()
        web_server.serve(app, listeners, network, further)


def _listening(stack: ExitStack, host: str, port: int) -> list[socket.socket]:
    """Sockets that listen until the stack is closed. Raises FailedPrecondition."""
    return [stack.enter_context(listener) for listener in loopback.listen(host, port, BACKLOG)]


def _authority(settings: Settings, domains: Sequence[str], names: Sequence[str]) -> "OwnAuthority":
    """The authority of the first domain: that for the names of the universe domain, and for Google's own in jobs; that
    for the address in the network. Raises UsageError."""
    from trainyard_storage.authority import OwnAuthority

    file = settings.data_dir / "keys" / f"authority-{domains[0]}.pem"
    try:
        authority = OwnAuthority(file, domains, names)
        authority.refresh(datetime.now(UTC))
    except (ValueError, TypeError) as error:
        raise UsageError(f"{file} is not the authority that this server made: move it away. {error}") from error
    return authority


def _lock(data_dir: Path, *, shared: bool) -> int:
    """Lock the data directory until the process ends: exclusively with SQLite, shared with a shared database."""
    if closed := make_private(data_dir):
        logger.warning("The data directory %s", closed)
    lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise UsageError(f"another server is using the data directory {data_dir}.") from error
    return lock
