"""Receiver of the code of a `jobs dev` job: `python receiver.py DIRECTORY`, whose `code` it keeps equal to a tree of
another machine. It runs in the replica, and uses only the standard library, of Python 3.8 or later.

stdin and stdout carry one JSON object a line. The sender begins with `{"root": ROOT, "replaces": BOOL}`, and gets
`{"begins": [PATH, ROOT]}`; `PATH` is "" where the code comes from another ROOT and is not to be replaced. A round is

    -> {"files": {NAME: {"sha256": HEX, "mode": N} or {"link": TARGET}, ...}}
    <- {"wanted": [NAME, ...]}
    -> {"name": NAME, "sha256": HEX, "mode": N, "size": N} and the content, for each that can be read
    -> {"end": true}
    <- {"problems": [SENTENCE, ...]}

`state.json` has what was written: only that is replaced or removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import IO, Any

_MAX_LINE = 1 << 26
_CHUNK = 1 << 20


class CodeReceiver:
    """The code below a directory, and the state of what was written there."""

    def __init__(self, directory: Path, source: IO[bytes], answers: IO[bytes]) -> None:
        self._directory = directory
        self._code = directory / "code"
        self._state = directory / "state.json"
        self._part = directory / f"part.{os.getpid()}"
        self._source = source
        self._answers = answers

    def serve(self) -> None:
        """Serve rounds until the input ends."""
        self._code.mkdir(mode=0o700, parents=True, exist_ok=True)
        beginning = self._message()
        if beginning is None:
            return
        state = self._read_state()
        root = state.get("root", "")
        if root and root != beginning["root"] and not beginning["replaces"]:
            self._answer({"begins": ["", root]})
            return
        self._write_state({"root": beginning["root"], "files": state.get("files", {})})
        with (self._directory / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # as long as it is held, the replica is in use
            self._answer({"begins": [str(self._code), beginning["root"]]})
            while (message := self._message()) is not None:
                if "files" in message:
                    self._round(message["files"])

    def _round(self, files: dict[str, dict[str, Any]]) -> None:
        state = self._read_state()
        written = state["files"]
        problems: list[str] = []
        for name in [name for name in written if name not in files]:
            self._remove(name, problems)
            del written[name]
        wanted = []
        for name, entry in files.items():
            if written.get(name) == entry and os.path.lexists(self._path(name)):
                continue
            if "link" in entry:
                self._link(name, entry, written, problems)
            else:
                wanted.append(name)
        self._answer({"wanted": wanted})
        while (message := self._message()) is not None and "name" in message:
            self._receive(message, written, problems)
        self._write_state(state)
        self._answer({"problems": problems})

    def _receive(self, entry: dict[str, Any], written: dict[str, Any], problems: list[str]) -> None:
        """Write the content that follows. It is read to its end also where it cannot be written."""
        name, left = entry["name"], entry["size"]
        part = self._part
        failure: OSError | None = None
        try:
            file = part.open("wb")
        except OSError as error:
            file, failure = open(os.devnull, "wb"), error  # noqa: PTH123, SIM115 - closed below
        with file:
            while left:
                data = self._source.read(min(left, _CHUNK))
                if not data:
                    raise EOFError("The connection ended within a file.")
                left -= len(data)
                try:
                    if failure is None:
                        file.write(data)
                except OSError as error:
                    failure = error
        try:
            if failure is not None:
                raise failure
            target = self._path(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            part.chmod(entry["mode"])
            part.replace(target)
        except OSError as error:
            problems.append(f"{name} was not written: {error.strerror}.")
        else:
            written[name] = {"sha256": entry["sha256"], "mode": entry["mode"]}

    def _link(self, name: str, entry: dict[str, Any], written: dict[str, Any], problems: list[str]) -> None:
        part, target = self._part, self._path(name)
        try:
            if os.path.lexists(part):
                part.unlink()
            part.symlink_to(entry["link"])
            target.parent.mkdir(parents=True, exist_ok=True)
            part.replace(target)
        except OSError as error:
            problems.append(f"{name} was not written: {error.strerror}.")
        else:
            written[name] = entry

    def _remove(self, name: str, problems: list[str]) -> None:
        """Remove a file, and the directories that are empty then."""
        path = self._path(name)
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            problems.append(f"{name} was not removed: {error.strerror}.")
            return
        for parent in path.parents:
            if parent == self._code:
                return
            try:
                parent.rmdir()
            except OSError:  # something else is in it
                return

    def _path(self, name: str) -> Path:
        """The place of a file. Raises ValueError for a name that leads out of the code."""
        if name.startswith("/") or not name or any(part in ("", ".", "..") for part in name.split("/")):
            raise ValueError(f"{name!r} is not a valid file name.")
        return self._code / name

    def _message(self) -> dict[str, Any] | None:
        line = self._source.readline(_MAX_LINE)
        message: dict[str, Any] | None = json.loads(line) if line else None
        return message

    def _answer(self, message: dict[str, Any]) -> None:
        self._answers.write(json.dumps(message).encode() + b"\n")
        self._answers.flush()

    def _read_state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self._state.read_bytes())
        except FileNotFoundError:
            return {}
        return state

    def _write_state(self, state: dict[str, Any]) -> None:
        self._part.write_text(json.dumps(state))
        self._part.replace(self._state)


if __name__ == "__main__":
    CodeReceiver(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer).serve()
