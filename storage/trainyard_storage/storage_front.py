"""gs:// for the jobs of a joined agent: the storage of its server, at an address of this machine.

The secret in the address is the token of a run, which goes to the server with each call: the proxy has no
permissions of its own.
"""

import asyncio
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from threading import Lock

import httpx

from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.net.loopback import IPV4
from trainyard_protocol.net.storage_calls import Kind, StorageCall, parse
from trainyard_protocol.net.trust import client_context
from trainyard_storage.object_files import Draft, room
from trainyard_storage.storage_batch import below_the_root
from trainyard_storage.storage_emulator import serve_containers, serve_loopback
from trainyard_storage.storage_http import StorageServer
from trainyard_storage.storage_messages import Answer, Call, FilePart, Refused
from trainyard_storage.tensorflow_front import Reach, TensorFlowFront

_OF_ROOT = Path("/var/lib/trainyard-storage")
_MAX_JSON = 1 << 26
_MOST_KNOWN = 4096  # tokens of runs
_TIMEOUTS = httpx.Timeout(300.0, connect=10.0, pool=60.0)
_SENT = frozenset(
    {
        *("content-type", "content-range", "content-encoding", "content-md5"),
        *("range", "if-match", "if-none-match", "x-upload-content-type", "x-upload-content-length"),
    }
)
_NOT_ANSWERED = frozenset(
    {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"}
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drafts:
    """Bodies that are being received, as files of a directory."""

    directory: Path

    def draft(self) -> Draft:
        return Draft(self.directory)

    def room(self) -> int:
        return room(self.directory)


class RemoteApi:
    """The storage of a server. `answer` is for several threads."""

    def __init__(self, url: str, ca_file: Path | None, directory: Path) -> None:
        """`url` of the server. `ca_file`: the authorities that may sign its certificate; None: those of the operating
        system. Raises InvalidArgument for the file."""
        self.store = Drafts(directory)
        self._url = url
        verify = client_context(ca_file) if url.startswith("https://") else False
        self._client = httpx.Client(verify=verify, timeout=_TIMEOUTS, trust_env=False)
        self._known: dict[str, None] = {}  # tokens that the server has taken, the newest last
        self._guard = Lock()

    def is_known(self, secret: str) -> bool:
        with self._guard:
            return secret in self._known

    def answer(self, call: Call) -> Answer:
        """The server's answer, with links below the address that the caller knows. Raises Refused."""
        call = call.overridden()
        asked = parse(call.method, call.path)
        if asked is None:
            raise Refused(HTTPStatus.NOT_FOUND, f"The storage has no {call.method} for this path.")
        target = asked.path_at_server + call.target.removeprefix(call.path)
        headers = {
            name: value for name, value in call.headers.items() if name in _SENT or name.startswith("x-goog-")
        }
        headers |= {"authorization": f"Bearer {call.secret}", "accept-encoding": "identity"}
        content: bytes | Iterator[bytes] | None = _blocks(call)
        if asked.kind is Kind.BATCH and call.body.size <= _MAX_JSON:  # the server refuses larger ones
            content = below_the_root(call.body.read(), call.base)
        elif content is not None:
            headers["content-length"] = str(call.body.size)
        try:
            with self._client.stream(
                call.method, f"{self._url}{target}", headers=headers, content=content
            ) as response:
                self._note(call.secret, is_taken=response.status_code != HTTPStatus.UNAUTHORIZED)
                return self._answer(call, asked, response)
        except httpx.HTTPError as error:
            _log.warning("%s does not answer: %s", self._url, error)
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE, f"The server {self._url} does not answer: try again."
            ) from error

    def close(self) -> None:
        self._client.close()

    def _note(self, secret: str, *, is_taken: bool) -> None:
        with self._guard:
            self._known.pop(secret, None)
            if is_taken:
                self._known[secret] = None
            if len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]

    def _answer(self, call: Call, asked: StorageCall, response: httpx.Response) -> Answer:
        kept = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in response.headers.raw
            if name.decode("latin-1").lower() not in _NOT_ANSWERED
        ]
        headers = tuple((name, value.replace(self._url, call.base)) for name, value in kept)
        length = response.headers.get("content-length")
        if call.method == "HEAD" or response.status_code in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            given = (("Content-Length", length),) if length is not None else ()
            return Answer(response.status_code, (*headers, *given, ("Connection", "close")))
        body = self._body(call, asked, response)
        size = len(body) if isinstance(body, bytes) else body.length
        framing = (("Content-Length", str(size)), ("Connection", "close"))
        return Answer(response.status_code, (*headers, *framing), body)

    def _body(self, call: Call, asked: StorageCall, response: httpx.Response) -> bytes | FilePart:
        is_json = response.headers.get("content-type", "").startswith("application/json")
        if is_json and call.query.get("alt") != "media" and not _is_content(asked):
            text = bytearray()
            for part in response.iter_raw():
                text += part
                if len(text) > _MAX_JSON:
                    raise Refused(
                        HTTPStatus.BAD_GATEWAY, "The server answers more than a page of objects has."
                    )
            return bytes(text).replace(self._url.encode(), call.base.encode())
        file = tempfile.TemporaryFile(dir=self.store.directory)  # noqa: SIM115 - the sender closes it
        try:
            for part in response.iter_raw():
                file.write(part)
            file.flush()
        except BaseException:
            file.close()
            raise
        return FilePart(file, 0, file.tell())


def default_directory(state_dir: Path) -> Path:
    """For root one that users of jobs can pass through, else in the user's state directory."""
    return _OF_ROOT if os.geteuid() == 0 else state_dir / "storage-front"


def run(url: str, ca_file: Path | None, directory: Path, port: int, *, containers: bool, reach: Reach) -> int:
    """Serve until SIGTERM or Ctrl-C. Returns an exit code. Raises FailedPrecondition, InvalidArgument."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for name in ("httpx", "httpcore"):  # they log addresses
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o711)  # users of jobs read the authorities in it
        front = TensorFlowFront(directory, None, reach)
        (directory / "drafts").mkdir(mode=0o700, exist_ok=True)
        for left in (directory / "drafts").iterdir():
            left.unlink()
    except (OSError, ValueError) as error:
        raise FailedPrecondition(f"The directory {directory} cannot be used: {error}.") from error
    storage = StorageServer(RemoteApi(url, ca_file, directory / "drafts"), None, front=front)
    return asyncio.run(_serve(storage, url, front, port, containers))


async def _serve(
    storage: StorageServer, url: str, front: TensorFlowFront, port: int, containers: bool
) -> int:
    try:
        servers = await serve_loopback(storage, port)
    except FailedPrecondition:
        await storage.close()
        raise
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    _log.info(
        "gs:// of %s is at http://%s:%d/{job}, its authorities in %s",
        url,
        IPV4,
        port,
        front.roots,
    )
    bridge = asyncio.create_task(serve_containers(storage, port)) if containers else None
    await stop.wait()
    for listener in servers:
        listener.close()
    if bridge is not None:
        bridge.cancel()
    await storage.close()
    return 0


def _is_content(asked: StorageCall) -> bool:
    """Whether the answer is an object's content, or others' answers, and not to be changed."""
    return asked.is_plain or asked.kind in (Kind.DOWNLOAD, Kind.BATCH)


def _blocks(call: Call) -> Iterator[bytes] | None:
    if call.method in ("GET", "HEAD", "DELETE"):
        return None
    return call.body.blocks(0, call.body.size)
