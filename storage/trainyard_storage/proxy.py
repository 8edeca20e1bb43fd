"""gs:// and MLflow's tracking for the jobs of a joined agent: those of its server, at an address of this machine.

The secret in the address is the token of a run, which goes to the server with each call: the proxy has no
permissions of its own.
"""

import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

import httpx

from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.net import loopback
from trainyard_protocol.net.storage_calls import Kind, parse
from trainyard_storage.app import StorageApp
from trainyard_storage.files import Draft, room
from trainyard_storage.messages import DEFENSES, Answer, Call, Refused
from trainyard_storage.remote import TRACKING, RemoteStorage, blocks, tracked
from trainyard_storage.server import BACKLOG, StorageServer
from trainyard_storage.tensorflow import Reach, TensorFlowProxy

_OF_ROOT = Path("/var/lib/trainyard-storage")
_MOST_KNOWN = 4096  # tokens of runs

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drafts:
    """Bodies that are being received, as files of a directory."""

    directory: Path

    def draft(self) -> Draft:
        return Draft(self.directory)

    def room(self) -> int:
        return room(self.directory)


class RemoteBackend:
    """The storage of a server."""

    def __init__(self, url: str, ca_file: Path | None, directory: Path) -> None:
        """`url` of the server. `ca_file`: the authorities that may sign its certificate; None: those of the operating
        system. Raises InvalidArgument for the file."""
        self.bodies = Drafts(directory)
        self._remote = RemoteStorage(url, ca_file, by_proxies=False)  # as the agent
        self._remote.opened()
        self._known: dict[str, None] = {}  # tokens that the server has accepted, the newest last

    def is_known(self, secret: str) -> bool:
        return secret in self._known

    @asynccontextmanager
    async def answered(self, call: Call) -> AsyncIterator[Answer]:
        """The server's answer, with links below the address that the caller knows. Raises Refused, Unavailable, and
        ConnectionAbortedError where the server's answer ends early."""
        if call.path.startswith(TRACKING):
            async with tracked(self._remote, call, call.secret) as answer:
                self._note(call.secret, is_accepted=answer.status != HTTPStatus.UNAUTHORIZED)
                yield answer
            return
        asked = parse(call.method, call.path)
        if asked is None or asked.kind is Kind.BATCH:
            raise Refused(HTTPStatus.NOT_FOUND, f"The storage has no {call.method} for this path.")
        headers = {**call.headers, "content-length": str(call.body.size), "accept-encoding": "identity"}
        target = asked.path_at_server + call.target.removeprefix(call.path)
        body = blocks(call.body)
        response = await self._remote.send(call.method, target, headers, body, call.secret)
        try:
            self._note(call.secret, is_accepted=response.status_code != HTTPStatus.UNAUTHORIZED)
            answer = await self._remote.answer(response, asked, call.query, call.base)
            names = {name.lower() for name, _ in answer.headers}
            further = tuple((name, value) for name, value in DEFENSES if name.lower() not in names)
            yield replace(answer, headers=(*answer.headers, *further))
        except httpx.HTTPError as error:
            _log.warning("an answer of the server ended early: %s", type(error).__name__)
            raise ConnectionAbortedError from error
        finally:
            await response.aclose()

    async def close(self) -> None:
        await self._remote.close()

    def _note(self, secret: str, *, is_accepted: bool) -> None:
        self._known.pop(secret, None)
        if is_accepted:
            self._known[secret] = None
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]


def default_directory(state_dir: Path) -> Path:
    """The directory of the proxy: for root one that users of jobs can pass through, else in the user's state
    directory."""
    return _OF_ROOT if os.geteuid() == 0 else state_dir / "storage-proxy"


def run(url: str, ca_file: Path | None, directory: Path, port: int, *, containers: bool, reach: Reach) -> int:
    """Serve until SIGTERM or Ctrl-C. Returns an exit code. Raises FailedPrecondition, InvalidArgument."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o711)  # users of jobs read the authorities in it
        proxy = TensorFlowProxy(directory, None, reach)
        (directory / "drafts").mkdir(mode=0o700, exist_ok=True)
        for left in (directory / "drafts").iterdir():
            left.unlink()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FailedPrecondition(f"The directory {directory} cannot be used: {reason}.") from error
    app = StorageApp(RemoteBackend(url, ca_file, directory / "drafts"), None, proxy=proxy)
    listeners = loopback.listen(loopback.IPV4, port, BACKLOG)
    _log.info("gs:// of %s is at http://%s:%d/{job}, its authorities in %s", url, loopback.IPV4, port, proxy.roots)
    StorageServer(app, port, for_containers="" if containers else None).run(listeners)
    return 0
