"""pg_restore: a backup's copy of a PostgreSQL database, into an empty one."""

import os
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument

DUMP = "trainyard.pgdump"
_SCHEME = "postgresql+psycopg"


def restore(dump: Path, url: str, *, again: bool) -> None:
    """Restore all tables in one transaction. `again`: an earlier attempt may have succeeded; its tables are replaced.
    Raises InvalidArgument, FailedPrecondition."""
    plain, environment = _connection(url)
    command = ["pg_restore", "--single-transaction", "--exit-on-error", "--no-owner", f"--dbname={plain}"]
    if again:
        command += ["--clean", "--if-exists"]
    try:
        done = subprocess.run(
            [*command, str(dump)],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise FailedPrecondition(
            "pg_restore is not installed here, and this is the backup of a service on PostgreSQL. Install PostgreSQL's "
            "client programs of the database's version (Debian: postgresql-client)."
        ) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise FailedPrecondition(
            f"pg_restore could not restore the database: {lines[0]} It needs a database without tables of Trainyard: "
            "create one (`createdb NAME`)."
        )


def _connection(url: str) -> tuple[str, dict[str, str]]:
    """The URL without its password, which no command line is to show, and an environment with it."""
    parts = urlsplit(url)
    if parts.scheme not in (_SCHEME, "postgresql") or not parts.path.strip("/"):
        raise InvalidArgument(f"--database must look like {_SCHEME}://user:password@host/database.")
    netloc, environment = parts.netloc, {}
    if parts.password is not None:
        environment["PGPASSWORD"] = unquote(parts.password)
        user, _, host = netloc.rpartition("@")
        netloc = f"{user.partition(':')[0]}@{host}"
    return urlunsplit(("postgresql", netloc, parts.path, parts.query, "")), environment
