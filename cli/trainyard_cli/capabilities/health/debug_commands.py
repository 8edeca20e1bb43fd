"""`trainyard debug-bundle`: one archive for whoever helps."""

import io
import json
import platform
import re
import tarfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import trainyard_protocol
from trainyard_cli.commands.shared.options import server_options
from trainyard_cli.local.connect import connect, find_server, notify
from trainyard_cli.local.state import LocalState
from trainyard_cli.settings import Target, remote_server
from trainyard_protocol.errors import InvalidArgument, TrainyardError
from trainyard_protocol.net.private_files import create_private

if TYPE_CHECKING:
    from trainyard_cli.client import Client

_MOST_LOG = 500_000
"""Bytes of the end of each log."""

_MOST_WHY = 20
"""Queued jobs whose waiting is explained."""

_TOKENS = re.compile(r"trainyard_[A-Za-z0-9_-]{16,}|(?i:bearer) +[A-Za-z0-9._~+/-]{8,}=*|run_[A-Za-z0-9._-]{24,}")
_PRIVATE_KEYS = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)
_SECRETS_IN_URLS = re.compile(r"(://[^\s/@:]*:)[^\s/@]+@")
_MASK = "***"


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@server_options
def debug_bundle(target: Target, file: Path | None) -> None:
    """Write versions, settings, health, recent logs, queue and agents into one archive, without secrets.

    Also what `trainyard doctor` finds. Of a service of this machine that is stopped or does not answer there are the
    logs and the reason. Of other servers operators get all parts. FILE is by default trainyard-debug-TIME.tar.gz here.
    """
    path = file or Path(f"trainyard-debug-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.gz")
    state = LocalState(target.state_dir) if remote_server(target) is None else None
    parts = [("versions.json", _text(_own_versions())), *_parts(target, state)]
    secrets = _secrets(target, state)
    _write(path, [(name, masked(text, secrets)) for name, text in parts])
    notify(f"Wrote {path}: {', '.join(name for name, _ in parts)}. Tokens are masked; read it before you send it.")


def masked(text: str, secrets: Collection[str]) -> str:
    """The text without these secrets, and without what looks like a token or a password in a URL."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _MASK)
    for pattern in (_PRIVATE_KEYS, _TOKENS):
        text = pattern.sub(_MASK, text)
    return _SECRETS_IN_URLS.sub(rf"\1{_MASK}@", text)


def _write(path: Path, parts: Collection[tuple[str, str]]) -> None:
    """Write the archive for its owner alone; none is left if that fails."""
    try:
        created = create_private(path)
    except FileExistsError:
        raise InvalidArgument(f"{path} exists: give another name.") from None
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}.") from error
    try:
        with created as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in parts:
                content = text.encode()
                member = tarfile.TarInfo(f"trainyard-debug/{name}")
                member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
                archive.addfile(member, io.BytesIO(content))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}.") from error


def _parts(target: Target, state: LocalState | None) -> Iterator[tuple[str, str]]:
    """Raises FailedPrecondition where no server is configured, and there was none on this machine."""
    from trainyard_cli.capabilities.health.doctor import examine

    is_local = state is not None and state.exists()
    try:
        client = connect(target)
    except TrainyardError as error:
        if not is_local:
            raise
        yield "server.json", _text({"error": error.message})
    else:
        with client:
            yield from _of_server(client)
    yield "doctor.json", _answer(lambda: [finding.model_dump(mode="json") for finding in examine(target)])
    if state is not None and is_local:
        yield from _logs(state)


def _of_server(client: "Client") -> Iterator[tuple[str, str]]:
    """Answers of the server. A part that it refuses has the reason."""
    yield "server.json", _answer(client.debug_state)
    yield "health.json", _answer(client.health)
    yield "status.json", _answer(client.status)

    def queue() -> list[Any]:
        jobs = [job for job in client.activities() if job["state"] == "QUEUED"]
        own = [job["job_id"] for job in jobs if job["project"] == client.project][:_MOST_WHY]
        return [*jobs, *(client.why(job).model_dump(mode="json") for job in own)]

    yield "queue.json", _answer(queue)


def _answer(read: Callable[[], Any]) -> str:
    try:
        data = read()
    except TrainyardError as error:
        return _text({"error": error.message})
    return _text(data if isinstance(data, list) else data.model_dump(mode="json"))


def _text(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _own_versions() -> dict[str, str]:
    versions = {"trainyard": trainyard_protocol.__version__, "python": platform.python_version()}
    return {**versions, "platform": platform.platform()}


def _secrets(target: Target, state: LocalState | None) -> set[str]:
    """The caller's own token, and tokens and keys of the service of this machine."""
    server = find_server(target)
    secrets = set() if server is None else {server.token}
    if state is not None:
        secrets |= {text for file in state.secret_files if (text := file.read_text(encoding="utf-8").strip())}
        with suppress(OSError, ValueError, KeyError):  # before the agent's first start there is none
            secrets.add(json.loads(state.agent_file.read_text(encoding="utf-8"))["key"])
    return {secret for secret in secrets if secret}


def _logs(state: LocalState) -> Iterator[tuple[str, str]]:
    """The ends of the logs of the service of this machine."""
    for name in ("server", "agent", "storage"):
        log = state.log_file(name)
        if not log.exists():
            continue
        with log.open("rb") as file:
            size = log.stat().st_size
            file.seek(max(0, size - _MOST_LOG))
            yield f"{name}.log", file.read(_MOST_LOG).decode("utf-8", "replace")
