"""Keeps the code in a replica equal to a directory of this machine: what has changed is sent, what is gone is removed.

The directory is looked at every second. A file is read where its size or its time has changed, and sent where its
content has.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trainyard_cli.capabilities.attachments.dev import tree
from trainyard_cli.capabilities.attachments.dev.tree import CodeDirectory, CodeTree
from trainyard_programs.files import ProgramFile
from trainyard_protocol.errors import FailedPrecondition, TrainyardError, Unavailable, shown

POLL_S = 1.0
ALIVE_S = 60.0
"""Seconds after which something is sent in any case: the server ends attachments in which nothing moves."""

_MOST_LINE = 2**26
_MOST_SENTENCE = 1000

Notify = Callable[[str], None]


class ReceiverPipe(Protocol):
    """The input and output of the receiver in the replica."""

    def send(self, data: bytes) -> None: ...

    def read_line(self, most_bytes: int) -> bytes: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SyncResult:
    """One synchronisation: the files that were sent, the number of all, and sentences about the others."""

    sent: tuple[str, ...]
    files: int
    notices: tuple[str, ...]


class Synchroniser:
    """Synchronises a directory by a receiver. For one thread."""

    def __init__(self, pipe: ReceiverPipe, directory: CodeDirectory, root: str, *, replaces: bool) -> None:
        """`root` names the directory to people. Raises FailedPrecondition where the code in the replica comes from
        another one, unless it `replaces` that."""
        self._pipe = pipe
        self._directory = directory
        self._digests: dict[str, tuple[ProgramFile, str]] = {}
        self._last: CodeTree | None = None
        self._send({"root": root, "replaces": replaces})
        self.code, other = map(str, self._answer("begins"))
        if not self.code:
            raise FailedPrecondition(
                f"The code of this job comes from {shown_sentence(other)}. Run the command there, or name the "
                "directory that replaces it with --package-path."
            )

    def synchronise(self) -> SyncResult | None:
        """Send what has changed since the last time; None if nothing has. Raises InvalidArgument for a directory that
        is too large, Unavailable where the connection is lost."""
        now = tree.scan(self._directory)
        if now == self._last:
            return None
        manifest, notices = self._manifest(now)
        self._send({"files": manifest})
        wanted = [name for name in self._answer("wanted") if name in manifest]  # and nothing else of this machine
        sent = tuple(name for name in wanted if self._send_file(name, now.files[name]))
        self._send({"end": True})
        problems = map(shown_sentence, self._answer("problems"))
        self._last = now if len(sent) == len(wanted) else None
        return SyncResult(sent, len(manifest), (*now.notices, *notices, *problems))

    def keep(self, ended: threading.Event, notify: Notify) -> None:
        """Synchronise until the event. What cannot be sent is said once."""
        messages: set[str] = set()
        quiet_s = 0.0
        while not ended.wait(POLL_S):
            quiet_s += POLL_S
            texts: tuple[str, ...] = ()
            try:
                if quiet_s >= ALIVE_S:
                    self._send({})
                    quiet_s = 0.0
                if (result := self.synchronise()) is not None:
                    texts, quiet_s = result.notices, 0.0
            except Unavailable as error:
                notify(f"Files are no longer synchronised: {error.message}")
                return
            except TrainyardError as error:
                texts = (error.message,)
            for text in texts:
                if text not in messages:
                    messages.add(text)
                    notify(text)

    def close(self) -> None:
        self._pipe.close()

    def _manifest(self, now: CodeTree) -> tuple[Mapping[str, Mapping[str, object]], list[str]]:
        """The files with their digests, and sentences about those that cannot be read."""
        notices: list[str] = []
        digests: dict[str, tuple[ProgramFile, str]] = {}
        manifest: dict[str, Mapping[str, object]] = {}
        for name, file in now.files.items():
            if file.link:
                manifest[name] = {"link": file.link}
                continue
            before = self._digests.get(name)
            if before is not None and before[0] == file:
                digests[name] = before
            elif (data := tree.content(file)) is not None:
                digests[name] = (file, tree.sha256(data))
            else:
                notices.append(f"{shown(name)} is not synchronised: it cannot be read.")
                continue
            manifest[name] = {"sha256": digests[name][1], "mode": file.mode}
        self._digests = digests
        return manifest, notices

    def _send_file(self, name: str, file: ProgramFile) -> bool:
        """False if it has gone since: the next time sees it."""
        data = tree.content(file)
        if data is None:
            return False
        self._send({"name": name, "sha256": tree.sha256(data), "mode": file.mode, "size": len(data)})
        self._pipe.send(data)
        return True

    def _send(self, message: Mapping[str, object]) -> None:
        self._pipe.send(json.dumps(message).encode() + b"\n")

    def _answer(self, key: str) -> Any:
        """The answer of the receiver with that key. Raises Unavailable for anything else."""
        line = self._pipe.read_line(_MOST_LINE)
        try:
            return json.loads(line)[key]
        except (ValueError, KeyError, TypeError) as error:
            text = shown(line.decode(errors="replace").strip())
            raise Unavailable(f"The receiver in the replica answers with something else: {text}") from error


def shown_sentence(text: object) -> str:
    """A sentence out of a replica for a terminal."""
    return shown(str(text), _MOST_SENTENCE)
