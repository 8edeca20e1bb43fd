"""The copy of a log that an engine keeps: a thread writes it as numbered lines, and goes on after any failure.

An engine says how its log is read from the position at which ours ends, and which of its lines are there already.
"""

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainyard_agent.host.files import write_json
from trainyard_agent.runtimes.base import EngineUnavailable
from trainyard_agent.runtimes.log_file import DONE, LOG
from trainyard_agent.runtimes.masking import Mask
from trainyard_agent.runtimes.supervisor import CUT, fitting, has_all, truncate_torn_line

_log = logging.getLogger(__name__)


class _CopyChanged(OSError):
    """The copy is not what was written to it, as is seen at the next round."""


class LogCopier(threading.Thread, ABC):
    """Copies one log to `directory`/log.jsonl while it grows, and writes done.json when it is complete.

    `secrets` returns the values to mask, the same each time; without them nothing is copied. `quota` limits the copy,
    in bytes; 0: no limit. The thread ends with the log, or by `close`; then another one may continue.
    """

    pause_s, longest_pause_s = 0.1, 2.0

    def __init__(
        self, name: str, directory: Path, secrets: Callable[[], Sequence[str]] = tuple, quota: int = 0
    ) -> None:
        super().__init__(daemon=True, name=f"log of {name}")
        self._directory, self._secrets, self._quota = directory, secrets, quota
        self._path = directory / LOG
        self._closing = threading.Event()
        self._size = self._count = 0  # of our log
        self._number = 0  # of its file

    @abstractmethod
    def _round(self, mask: Mask) -> Mapping[str, object] | None:
        """Copy what is there, and follow it. Returns what done.json says once the log is complete. Raises
        EngineUnavailable, OSError."""

    def close(self) -> None:
        self._closing.set()

    def run(self) -> None:
        mask: Mask | None = None
        failure, pause_s = "", self.pause_s
        while not self._closing.is_set():
            try:
                if not self._is_own():
                    self._lose_copy()
                    return
                if mask is None:
                    self._read_position()
                    mask = Mask(self._secrets())
                note = self._round(mask)
                if note is not None:
                    if not self._closing.is_set():
                        number = {"file": self._number} if self._number else {}
                        write_json(self._directory / DONE, {**note, **number})
                    return
                failure = ""
            except (EngineUnavailable, OSError) as error:
                if self._closing.is_set() or not self._directory.is_dir():
                    return
                if str(error) != failure:
                    _log.warning("the %s is not read now, trying again: %s", self.name, error)
                failure = str(error)
            except Exception:  # noqa: BLE001 - the log would never be complete
                _log.exception("the %s is not read now, trying again", self.name)
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, self.longest_pause_s)

    def _lose_copy(self) -> None:
        """End a log whose copy is gone: it may lack any number of lines. Raises OSError."""
        write_json(self._directory / DONE, {"copy": "changed or removed, and not by Trainyard"})

    def _read_position(self) -> None:
        """The position at which our log ends, as another copier may have left it."""
        self._count = truncate_torn_line(self._path)
        self._size = self._path.stat().st_size if self._count else 0

    def _append(self, lines: Sequence[str]) -> int:
        """Write the lines for which the quota has room; others cut the log. Returns how many were written."""
        count = len(lines)
        if self._quota:
            count = fitting([len(line) for line in lines], self._quota - self._size)  # they are ASCII
        if count:
            data = "".join(lines[:count]).encode()
            self._write(data)
            self._size += len(data)
            self._count += count
        if count < len(lines):
            self._cut()
        return count

    def _write(self, data: bytes) -> None:
        """Raises OSError."""
        if not self._is_own():
            raise _CopyChanged
        with self._path.open("ab") as file:
            self._number = os.fstat(file.fileno()).st_ino
            file.truncate(self._size)  # without what a full disk has accepted of an earlier attempt
            file.write(data)

    def _is_own(self) -> bool:
        """Whether the copy is what was written to it: somebody may have removed, replaced or cut off its file."""
        return has_all(self._path, self._size, self._number)

    def _cut(self) -> None:
        write_json(self._directory / CUT, {})

    def _is_cut(self) -> bool:
        return (self._directory / CUT).exists()
