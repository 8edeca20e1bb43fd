"""Rehearsal of a backup: it is started in a directory of its own, without an agent, and all of it is read."""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard_cli.capabilities.backups import postgresql
from trainyard_cli.capabilities.backups.archive import unpack
from trainyard_cli.capabilities.backups.restoring import check_database
from trainyard_cli.client import Client
from trainyard_cli.settings import DEFAULT_PROJECT, Server
from trainyard_cli.v1_client import NO_RETRIES
from trainyard_protocol.answers.stored.backups import SERVER_PART, STORAGE_PART, BackupManifest, Examined
from trainyard_protocol.errors import InvalidArgument, TrainyardError
from trainyard_protocol.net.loopback import IPV4, free_port
from trainyard_protocol.net.private_files import create_private

_START_S = 600.0
_POLL_S = 0.1
_END_S = 20.0
_PATIENCE_S = 6 * 3600.0  # it reads every log and object
_COUNTED = {"jobs": "jobs", "secrets": "secrets"}
_LAST_LINES = 15

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The results by what was examined; `manifest` is None where the archive cannot be read."""

    manifest: BackupManifest | None
    examined: tuple[Examined, ...]

    @property
    def is_good(self) -> bool:
        return not any(part.faults for part in self.examined)


def rehearse(archive: Path, database: str, directory: Path | None, report: Report) -> Rehearsed:
    """Examine a backup. `directory`: where it is unpacked, below the system's for temporary files if it is None. The
    backup of a database of PostgreSQL needs an empty one. Raises FailedPrecondition, OSError."""
    with tempfile.TemporaryDirectory(prefix="trainyard-rehearsal-", dir=directory) as name:
        root = Path(name)
        report("unpacking the backup and comparing it with its manifest")
        try:
            manifest = unpack(archive, root)
        except InvalidArgument as error:
            return Rehearsed(None, (Examined(what="archive", count=1, faults=(error.message,)),))
        check_database(archive, manifest, database)
        archived = Examined(what="files of the archive", count=len(manifest.files))
        if database:
            report("restoring the database")
            postgresql.restore(root / SERVER_PART / postgresql.DUMP, database, again=False)
        try:
            report("starting a server on it")
            with _serving(root, database) as client:
                report("reading jobs, logs, secrets, the audit and objects")
                examined = client.examination().examined
        except TrainyardError as error:
            return Rehearsed(manifest, (archived, Examined(what="server", count=1, faults=(error.message,))))
        return Rehearsed(manifest, (archived, *(_counted(part, manifest) for part in examined)))


def _counted(part: Examined, manifest: BackupManifest) -> Examined:
    """The same, with a fault where there are not as many as the backup had."""
    expected = manifest.counts.get(_COUNTED.get(part.what, ""), part.count)
    if part.count == expected:
        return part
    fault = f"there are {part.count} {part.what}, and the manifest counts {expected}"
    return part.model_copy(update={"faults": (fault, *part.faults)})


@contextmanager
def _serving(root: Path, database: str) -> Iterator[Client]:
    """A server on the unpacked backup, until the end of the block. Raises InvalidArgument with the end of its log if it
    does not start."""
    token, port = secrets.token_urlsafe(32), free_port()
    token_file, log = root / "rehearsal-token", root / "rehearsal.log"
    with create_private(token_file) as file:
        file.write(token.encode())
    command = [
        *(sys.executable, "-m", "trainyard_server", "--rehearsal"),
        *("--data-dir", str(root / SERVER_PART), "--host", IPV4, "--port", str(port)),
        *("--token-file", f"admin={token_file}"),
    ]
    if (root / STORAGE_PART).is_dir():
        command += ["--backup-storage", str(root / STORAGE_PART)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRAINYARD_")}
    if database:
        environment["TRAINYARD_SERVE_DATABASE"] = database  # no command line has its password
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        target = Server(f"http://{IPV4}:{port}", token, local=True)
        with Client(target, DEFAULT_PROJECT, retry_delays=NO_RETRIES, timeout=_PATIENCE_S) as client:
            deadline = time.monotonic() + _START_S
            while not client.answers():
                if server.poll() is not None or time.monotonic() > deadline:
                    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
                    raise InvalidArgument("\n".join(["the server did not start; the end of its log:", *lines]))
                time.sleep(_POLL_S)
            yield client
    finally:
        server.terminate()
        try:
            server.wait(_END_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
