"""The command `python -m trainyard_server`: parses settings and serves until SIGTERM."""

import argparse
import fcntl
import gc
import logging
import math
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trainyard_protocol.errors import InvalidArgument, TrainyardError
from trainyard_protocol.lines.time_parsing import parse_duration
from trainyard_protocol.net import loopback
from trainyard_protocol.net.private_files import HOW_TO_MAKE_ONE, make_private, read_token_file
from trainyard_protocol.views.google import DEFAULT_DOMAIN, GOOGLES_DOMAIN, host_of, names_of
from trainyard_server import web_server
from trainyard_server.api.middleware.hosts import is_host_name
from trainyard_server.app import create_app
from trainyard_server.config import network
from trainyard_server.config.network import BACKLOG, NetworkOptions, checked_network
from trainyard_server.config.oidc_options import OidcOptions, checked_oidc
from trainyard_server.config.settings import GRACE_S, LEAST_LEASE_S, Settings
from trainyard_server.domain.access.permissions import Role, Token, is_name
from trainyard_server.domain.access.route_access import OIDC_CALLBACK
from trainyard_server.storage import descriptors
from trainyard_server.storage.db.base.engine import UnusableUrl
from trainyard_server.storage.failures import DatabaseError, failure_of
from trainyard_server.storage.remote_objects import GOOGLE
from trainyard_server.web_server import GoogleFront

if TYPE_CHECKING:
    from trainyard_server.config.own_authority import OwnAuthority

_SHORTEST_TOKEN = 20
_LONGEST_AUDIT_DAYS = 36_500

logger = logging.getLogger(__name__)


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
    try:
        reached = checked_network(options)
    except InvalidArgument as error:
        raise UsageError(error.message) from error
    settings = _settings(options, reached.names)
    descriptors.raise_limit()
    with ExitStack() as stack:
        try:
            # First, so that a busy port is reported before anything is opened.
            listeners = _listening(stack, reached, options.port)
            google_listeners = _listening(stack, reached, options.google_port) if options.google_port else []
            stack.callback(os.close, _lock(settings.data_dir, shared=bool(settings.database)))
            front = None
            if google_listeners:
                front = GoogleFront(google_listeners, _authority(settings))
                settings = replace(settings, google_ca=front.authority.ca)
            app = create_app(settings)
        except TrainyardError as error:
            raise UsageError(error.message) from error
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
        web_server.serve(app, listeners, reached, front)


def _listening(stack: ExitStack, reached: NetworkOptions, port: int) -> list[socket.socket]:
    """Sockets that listen until the stack is closed. Raises FailedPrecondition."""
    return [stack.enter_context(listener) for listener in loopback.listen(reached.host, port, BACKLOG)]


def _authority(settings: Settings) -> "OwnAuthority":
    """The authority for the names of the universe domain, and for Google's own in jobs. Raises UsageError."""
    from trainyard_server.config.own_authority import OwnAuthority

    host = host_of(settings.google_domain)
    file = settings.data_dir / "keys" / f"authority-{host}.pem"
    try:
        return OwnAuthority(file, (host, GOOGLES_DOMAIN), _google_names(host))
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{file} is not the authority that this server made: move it away. {error}"
        ) from error


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
    network.add_options(parser)
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name that a proxy in front of the server passes on, such as trainyard.example.com; may be given "
        "several times. Requests to other names are refused, except addresses, localhost and names below it",
    )
    parser.add_argument(
        "--region",
        action="append",
        default=[],
        metavar="NAME",
        help="a region that jobs may name, such as us-central1; may be given several times. Without it every region is "
        "accepted",
    )
    parser.add_argument(
        "--check-packages",
        action="store_true",
        help="refuse a job with a package on gs:// that this server cannot read, as AI Platform did; for sites where "
        "the server may read what the agents may",
    )
    parser.add_argument(
        "--token-file",
        action="append",
        default=[],
        metavar="ROLE[:NAME]=FILE",
        help="a file with the token of a viewer, submitter, admin or agent, and its owner, as in "
        "submitter:alice=FILE; once for each token",
    )
    _add_oidc(parser)
    parser.add_argument("--machine-types", type=Path, help="the site's own machine types (YAML)")
    parser.add_argument(
        "--quotas", type=Path, help="what each project may use at the same time, and which images (YAML)"
    )
    parser.add_argument(
        "--storage",
        default="",
        metavar="URL",
        help="the storage behind /storage/v1, with the API of Google Cloud Storage: http://HOST:PORT, or "
        f"{GOOGLE} with the credentials of the server's environment; default: $STORAGE_EMULATOR_HOST",
    )
    parser.add_argument(
        "--job-dir-root",
        action="append",
        default=[],
        metavar="DIRECTORY",
        help="job-dirs below PROJECT/OWNER of this directory, or of this gs://BUCKET with the server's own "
        "credentials, may be shown; may be given several times. default: none",
    )
    parser.add_argument(
        "--default-job-dir",
        default="",
        metavar="DIRECTORY",
        help="a job without jobDir gets the directory PROJECT/OWNER/JOB below this path or gs:// URL, named in its "
        "environment; default: none",
    )
    parser.add_argument(
        "--one-user",
        action="store_true",
        help="all jobs are one person's: job-dirs may lie anywhere below --job-dir-root instead of below its "
        "PROJECT/OWNER, and --default-job-dir gives PROJECT/JOB",
    )
    parser.add_argument("--lease-seconds", type=float, default=defaults.lease_s, help="default: %(default)s")
    parser.add_argument(
        "--requests-per-second",
        type=float,
        default=defaults.requests_per_s,
        metavar="N",
        help="requests of one person, on each server process, 0 for no limit; default: %(default)g",
    )
    parser.add_argument(
        "--storage-requests-per-second",
        type=float,
        default=defaults.storage_requests_per_s,
        metavar="N",
        help="calls of one person to the storage (/storage/v1), which do not count for --requests-per-second, 0 for no "
        "limit; default: %(default)g",
    )
    parser.add_argument(
        "--event-streams",
        type=int,
        default=defaults.event_streams,
        metavar="N",
        help="live pages and followed logs that one person may have open, on each server process, 0 for no limit; "
        "default: %(default)s",
    )
    parser.add_argument(
        "--queued-jobs",
        type=int,
        metavar="N",
        help="queued jobs that one owner may have in one project, 0 for no limit; "
        f"default: {defaults.queued_jobs}, with --one-user 0",
    )
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
    parser.add_argument(
        "--keep-audit",
        type=int,
        default=365,
        metavar="DAYS",
        help="keep rows of the audit so long, 0 for ever; default: %(default)s",
    )
    parser.add_argument(
        "--audit-file",
        type=Path,
        metavar="FILE",
        help="append each row of the audit to this file, as a line of JSON; default: none",
    )
    parser.add_argument("--retries", type=int, default=defaults.retries, help="default: %(default)s")
    parser.add_argument(
        "--log-level",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="default: %(default)s",
    )
    return parser


def _add_oidc(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("single sign-on", "an OpenID Connect issuer for the dashboard")
    group.add_argument(
        "--oidc-issuer", default="", metavar="URL", help="the issuer, such as https://accounts.example.com"
    )
    group.add_argument("--oidc-client-id", default="", metavar="ID", help="this server's id at the issuer")
    group.add_argument(
        "--oidc-client-secret-file",
        type=Path,
        metavar="FILE",
        help="a file with this server's secret at the issuer; default: none, a public client",
    )
    group.add_argument(
        "--oidc-name-claim",
        default="email",
        metavar="CLAIM",
        help="the claim of the ID token that is a person's name here; default: %(default)s, which must be verified",
    )
    group.add_argument(
        "--public-url",
        default="",
        metavar="URL",
        help="the address of the dashboard in browsers, such as https://trains.example.com; the issuer sends them back "
        f"to {OIDC_CALLBACK} below it",
    )


def _settings(options: argparse.Namespace, names: Sequence[str] = ()) -> Settings:
    if not LEAST_LEASE_S <= options.lease_seconds < math.inf:
        raise UsageError(
            f"--lease-seconds must be at least {LEAST_LEASE_S:g}, four times the grace period of {GRACE_S:g} s: agents "
            f"stop their replicas before their lease ends. This is {options.lease_seconds:g}."
        )
    if options.retries < 0:
        raise UsageError(f"--retries must be 0 or more; this is {options.retries}.")
    if not 0 <= options.keep_logs_gb < math.inf:
        raise UsageError(f"--keep-logs-gb must be 0 (no limit) or more; this is {options.keep_logs_gb:g}.")
    for name in ("requests_per_second", "storage_requests_per_second"):
        if not 0 <= (rate := getattr(options, name)) < math.inf:
            raise UsageError(f"--{name.replace('_', '-')} must be 0 (no limit) or more; this is {rate:g}.")
    for name in ("event_streams", "queued_jobs"):
        if (given := getattr(options, name)) is not None and given < 0:
            raise UsageError(f"--{name.replace('_', '-')} must be 0 (no limit) or more; this is {given}.")
    if options.log_quota < 0:
        raise UsageError(f"--log-quota must be 0 (no quota) or more bytes; this is {options.log_quota}.")
    oidc = _oidc(options)
    google_domain = _google_domain(options)
    public_hosts = (oidc.public_host,) if oidc is not None else ()
    if not 0 <= options.keep_audit <= _LONGEST_AUDIT_DAYS:
        raise UsageError(
            f"--keep-audit must be 0 (for ever) to {_LONGEST_AUDIT_DAYS} days; this is {options.keep_audit}."
        )
    return Settings(
        data_dir=options.data_dir,
        database=options.database,
        tokens=tuple(map(_token, options.token_file)),
        allowed_hosts=(
            *map(_host_name, options.allowed_host),
            *public_hosts,
            *names,
            *_google_names(google_domain),
        ),
        google_domain=google_domain,
        oidc=oidc,
        machine_types=options.machine_types,
        quotas=options.quotas,
        regions=tuple(options.region),
        check_packages=options.check_packages,
        job_dir_roots=tuple(Path(root).absolute() for root in options.job_dir_root if not _is_bucket(root)),
        job_dir_buckets=tuple(filter(_is_bucket, options.job_dir_root)),
        default_job_dir=options.default_job_dir,
        one_user=options.one_user,
        storage_emulator=os.environ.get("STORAGE_EMULATOR_HOST", ""),
        storage=_storage(options.storage),
        lease_s=options.lease_seconds,
        retries=options.retries,
        requests_per_s=options.requests_per_second,
        storage_requests_per_s=options.storage_requests_per_second,
        event_streams=options.event_streams,
        queued_jobs=_queued_jobs(options),
        log_quota=options.log_quota,
        keep_jobs_s=_keep_jobs(options.keep_jobs),
        keep_audit_s=options.keep_audit * 86400.0 or None,
        audit_file=options.audit_file,
        keep_log_bytes=round(options.keep_logs_gb * 10**9) or None,
    )


def _storage(text: str) -> str:
    address = urlsplit(text)
    if text and not (address.scheme in ("http", "https") and address.hostname):
        raise UsageError(f"--storage is http://HOST:PORT or {GOOGLE}; this is {text!r}.")
    return text


def _queued_jobs(options: argparse.Namespace) -> int:
    if options.queued_jobs is not None:
        return int(options.queued_jobs)
    return 0 if options.one_user else Settings(data_dir=Path()).queued_jobs


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


def _host_name(text: str) -> str:
    if not is_host_name(text):
        raise UsageError(
            f"--allowed-host takes a name without scheme and port, such as trainyard.example.com; this is {text!r}."
        )
    return text


def _google_domain(options: argparse.Namespace) -> str:
    if not options.google_port:
        return ""
    if not is_host_name(options.google_domain):
        raise UsageError(
            f"--google-domain takes a name such as {DEFAULT_DOMAIN}; this is {options.google_domain!r}."
        )
    return f"{options.google_domain.lower()}:{options.google_port}"


def _google_names(domain: str) -> Sequence[str]:
    return [*names_of(domain), *names_of(GOOGLES_DOMAIN)] if domain else []


def _oidc(options: argparse.Namespace) -> OidcOptions | None:
    if not options.oidc_issuer:
        return None
    secret = ""
    if (path := options.oidc_client_secret_file) is not None:
        secret = _private_text("--oidc-client-secret-file", path)
    try:
        return checked_oidc(
            options.oidc_issuer, options.oidc_client_id, options.public_url, secret, options.oidc_name_claim
        )
    except InvalidArgument as error:
        raise UsageError(error.message) from error


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
    return Token(Role(role), name, _secret(option, Path(path)))


def _secret(option: str, path: Path) -> str:
    """The token in a file that nobody else can use. Raises UsageError."""
    token = _private_text(f"--token-file {option}", path)
    if len(token) < _SHORTEST_TOKEN:
        raise UsageError(
            f"--token-file {option}: the token has {len(token)} characters, which can be guessed: it needs "
            f"{_SHORTEST_TOKEN}. Make one with {HOW_TO_MAKE_ONE}."
        )
    return token


def _private_text(option: str, path: Path) -> str:
    """The text of a file that nobody else can use. Raises UsageError."""
    try:
        file = read_token_file(path)
    except InvalidArgument as error:
        raise UsageError(f"{option}: {error.message}") from error
    if file.exposure is not None and file.exposure.is_grave:
        raise UsageError(f"{option}: {file.exposure.message}")
    if file.exposure is not None:
        logger.warning("%s: %s", option, file.exposure.message)
    return file.token


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
