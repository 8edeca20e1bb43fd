"""Checkpoints and the exported model in --job-dir.

    checkpoints/index.json                       the training's fingerprint, and the kept checkpoints: see index.py
    checkpoints/step-00000045-<random>/part-...  the state after 45 steps: see parts.py
    checkpoints/lock or lease.json               keeps other trainers out: see lease.py
    model/...                                    the exported model: see export.py
    logs/...                                     TensorBoard event files: see summaries.py

Only the chief writes, unless the state is divided over processes: then each writes its own parts. A checkpoint is
written by a thread while training continues; its parts are written before the index that lists it, so a listed
checkpoint is complete. Where training saves faster than the thread writes, a newer checkpoint replaces the one that
waits, unless that is the best. Only finite states are written. The newest --keep checkpoints are kept, and the one with
the best evaluation.
"""

import hashlib
import json
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.errors import CheckpointError, TrainerError
from trainyard_trainer.output.index import (
    INDEX,
    PREFIX,
    CheckpointEntry,
    Fingerprint,
    Index,
    read_index,
    rebuild,
    write_entry,
    write_index,
)
from trainyard_trainer.output.lease import Lock, lock
from trainyard_trainer.output.parts import Arrays, Piece, decode, encode, whole
from trainyard_trainer.storage import Folder, StorageError, open_folder

log = logging.getLogger("trainer")

MOST_PARTS = 100_000  # of one process
BEGUN = "begun"  # in the folder of a checkpoint that several processes write
TOGETHER_SECONDS, POLL = 600.0, 0.1  # for another process, and between two looks for what it writes
CLOSE_SECONDS = 20.0  # for the upload in flight when training fails, and to unlock


class Rated(Protocol):
    """A step and, unless it is None, the score of its evaluation."""

    @property
    def step(self) -> int: ...

    @property
    def score(self) -> float | None: ...


RatedT = TypeVar("RatedT", bound=Rated)


class NotFiniteError(TrainerError):
    """The state has a NaN or an infinity, so it was not saved."""


class _DamagedError(CheckpointError):
    """A part of a checkpoint is missing, or does not match its hash."""


class _Rating(NamedTuple):
    step: int
    score: float | None


class _Save(NamedTuple):
    """A checkpoint to be written: the arguments of `Saver.save`."""

    position: dict[str, Any]
    fetch: Callable[[], Arrays]
    on_saved: Callable[[], None]
    score: float | None

    @property
    def step(self) -> int:
        step: int = self.position["steps"]
        return step


class Saver:
    """Saves checkpoints and the model, if it is the chief's (process 0); any process may read them.

    A context manager: leaving it waits for the checkpoints that are to be written and unlocks the job directory.
    """

    def __init__(self, job_dir: str, process_id: int, keep: int, every_seconds: float = 0) -> None:
        """`every_seconds`: see `is_due`."""
        self._process_id, self._together = process_id, 0
        self._job_dir = open_folder(job_dir)
        self._checkpoints = self._job_dir.folder("checkpoints")
        self._is_chief = process_id == 0
        self._keep = keep
        self._every_seconds = every_seconds
        self._fingerprint: Fingerprint = {}
        self._lock: Lock | None = None
        self._entries: list[CheckpointEntry] = []  # of the index, which nobody else changes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._changing = threading.Lock()  # of the next two, which the thread changes too
        self._current: _Save | None = None  # being written; still there after an error, until `wait` raises it
        self._waiting: list[_Save] = []  # at most two: the best and the newest
        self._writing: Future[None] | None = None
        self._last_start = time.monotonic()

    def prepare(self, fingerprint: Fingerprint) -> None:
        """Lock the job directory for a training, and mend its index.

        Raises:
            JobDirLockedError: another trainer writes to it.
            CheckpointError: it has checkpoints of a training with another fingerprint, or that nothing describes.
        """
        self._lock = lock(self._checkpoints)
        read = read_index(self._checkpoints)
        index = read if read is not None and read.entries else rebuild(self._checkpoints, read)
        theirs = index.fingerprint or fingerprint
        different = [
            f"{key.replace('_', ' ')} {theirs.get(key)!r}, this command's is {fingerprint.get(key)!r}"
            for key in sorted({*theirs, *fingerprint})
            if theirs.get(key) != fingerprint.get(key)
        ]
        if different:
            raise CheckpointError(
                f"--job-dir {self._job_dir.url} has checkpoints of another training: {'; '.join(different)}. Choose "
                "another --job-dir, or the flags of that training."
            )
        self._fingerprint, self._entries = fingerprint, index.entries
        if index.entries and index is not read:
            self._write_index(index.entries, index.unused)
        _remove(self._checkpoints, index.unused)

    def checkpoints(self) -> list[CheckpointEntry]:
        """The checkpoints of the index, oldest first."""
        index = read_index(self._checkpoints)
        return [] if index is None else index.entries

    def newest(self, read: bool = True) -> tuple[CheckpointEntry, dict[str, NDArray[Any]]] | None:
        """The newest undamaged checkpoint and its arrays; None if there is none. Without `read` they are not kept.

        Raises:
            CheckpointError: all that are listed are damaged.
        """
        entries = sorted(self.checkpoints(), key=lambda entry: entry.step, reverse=True)
        for entry in entries:
            arrays = self.read(entry) if read else self._checked(entry)
            if arrays is not None:
                return entry, arrays
            log.warning("The checkpoint %s/%s is missing or damaged.", self._checkpoints.url, entry.name)
        if entries:
            raise CheckpointError(
                f"All checkpoints that {self._checkpoints.url}/{INDEX} lists are missing or damaged. Nothing was "
                f"changed. Restore one, choose another --job-dir, or remove {self._checkpoints.url} to start anew."
            )
        return None

    def read(self, entry: CheckpointEntry) -> dict[str, NDArray[Any]] | None:
        """The arrays of a checkpoint; None if it was removed or a part does not match its hash."""
        try:
            return whole(self.pieces(entry))
        except _DamagedError:
            return None

    def pieces(self, entry: CheckpointEntry) -> Iterator[Piece]:
        """The pieces of the arrays of a checkpoint, of which one part is in memory at a time.

        Raises:
            CheckpointError: it was removed, or a part does not match its hash.
        """
        return decode(self._contents(entry))

    def _contents(self, entry: CheckpointEntry) -> Iterator[bytes]:
        folder = self._checkpoints.folder(entry.name)
        for name, sha256 in entry.parts.items():
            data = folder.read(name)
            if data is None or _sha256(data) != sha256:
                raise _DamagedError(f"The checkpoint {folder.url} is missing or damaged.")
            yield data

    def _checked(self, entry: CheckpointEntry) -> dict[str, NDArray[Any]] | None:
        try:
            return {} if all(self._contents(entry)) else None
        except _DamagedError:
            return None

    def is_due(self) -> bool:
        """Whether `every_seconds` have passed since the start of the last save (0: never), and none is in progress."""
        return bool(
            self._is_chief
            and self._every_seconds
            and time.monotonic() - self._last_start >= self._every_seconds
            and (self._writing is None or self._writing.done())
        )

    def make_room(self, step: int, score: float | None) -> None:
        """Drop the checkpoint that one of this step and score will replace, so that memory need not hold both."""
        with self._changing:
            self._drop_replaced(_Rating(step, _comparable(score)))

    def save(
        self,
        position: Mapping[str, Any],
        fetch: Callable[[], Arrays],
        on_saved: Callable[[], None],
        score: float | None = None,
    ) -> None:
        """Write a checkpoint in the background, in place of one that waits. It never waits for a write.

        Not replaced are the best checkpoint and, as none follows it, the last before `wait`.

        Args:
            position: of state.TrainingPosition.
            fetch: the state's arrays on the host; called by the thread, so that it may wait for the devices.
            on_saved: called when the checkpoint is in the index.
            score: of the state's evaluation; the highest is the best.

        Raises:
            NotFiniteError: a state that was saved before was not finite.
            StorageError, JobDirLockedError: it could not be written.
        """
        if not self._is_chief:
            return
        if self._writing is not None and self._writing.done():
            self.wait()  # raises its error
        self._last_start = time.monotonic()
        with self._changing:
            save = _Save(dict(position), fetch, on_saved, _comparable(score))
            self._drop_replaced(save)
            self._waiting.append(save)
            if self._current is None:
                self._current = self._waiting.pop(0)
                self._writing = self._thread.submit(self._write_all)

    def save_together(
        self,
        position: Mapping[str, Any],
        fetch: Callable[[], Arrays],
        on_saved: Callable[[], None],
        score: float | None,
        processes: int,
        token: str,
    ) -> None:
        """Write a checkpoint of a state that is divided over processes: each its own pieces, all into one folder.

        All processes call this at the same steps. It waits until the one before is written.

        Args:
            position, fetch, on_saved, score: see `save`.
            token: the same in all processes, and another in each start.

        Raises:
            NotFiniteError, StorageError, JobDirLockedError: the one before could not be written.
        """
        self.wait()
        self._last_start = time.monotonic()
        name = f"{PREFIX}{position['steps']:08d}-{token}{self._together}"
        self._together += 1
        write = self._write_as_chief if self._is_chief else self._write_as_other
        self._writing = self._thread.submit(write, name, dict(position), fetch, on_saved, _comparable(score), processes)

    def best(self) -> tuple[CheckpointEntry, dict[str, NDArray[Any]]] | None:
        """The checkpoint with the highest score and its arrays; None if there is none, or it is damaged."""
        entry = _best(self.checkpoints())
        arrays = self.read(entry) if entry else None
        if entry is None or arrays is None:
            log.warning("There is no checkpoint of the best evaluation in %s.", self._checkpoints.url)
            return None
        return entry, arrays

    def wait(self) -> None:
        """Wait until all that is to be written is; raises what `save` does."""
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                writing.result()
            except BaseException:
                self._current, self._waiting = None, []
                raise

    def save_model(self, files: dict[str, bytes]) -> str:
        """Write a model (see export.py), replacing an earlier one; returns its URL."""
        folder = self._job_dir.folder("model")
        if self._is_chief:
            for name, data in files.items():  # the last one refers to the others
                folder.write(name, data)
            _remove(folder, [name for name in folder.children() if name not in files])
        return folder.url

    def write_token(self, name: str) -> None:
        """Let other processes see that they have the same job directory."""
        self._checkpoints.write(name, b"token")

    def sees_token(self, name: str) -> bool:
        return self._checkpoints.read(name) is not None

    def remove_token(self, name: str) -> None:
        self._checkpoints.remove(name)

    def has_model(self) -> bool:
        """Whether a training has ended here, with a model."""
        return bool(self._job_dir.folder("model").children())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.wait()
            elif self._writing is not None and wait([self._writing], CLOSE_SECONDS).not_done:
                log.warning("A checkpoint was being written and is incomplete; the newest is one before it.")
        finally:
            if self._lock is not None:
                releasing = self._thread.submit(self._lock.release)
                if wait([releasing], CLOSE_SECONDS).not_done or releasing.exception() is not None:
                    log.warning("--job-dir %s could not be unlocked.", self._job_dir.url)
            self._thread.shutdown(wait=False)

    def _drop_replaced(self, newer: Rated) -> None:
        """Drop what waits, unless it is the best of all, which `newer` must not replace."""
        saves: list[Rated] = [*([self._current] if self._current else []), *self._waiting, newer]
        # Later ones in the index are damaged: see `_write`.
        best = _best([*(entry for entry in self._entries if entry.step < saves[0].step), *saves])
        self._waiting = [waiting for waiting in self._waiting if waiting is best]

    def _write_all(self) -> None:
        save = self._current
        while save is not None:
            self._write(*save)
            with self._changing:
                save = self._current = self._waiting.pop(0) if self._waiting else None

    def _write(
        self, position: dict[str, Any], fetch: Callable[[], Arrays], on_saved: Callable[[], None], score: float | None
    ) -> None:
        arrays, step = self._finite(fetch(), position["steps"]), position["steps"]
        name = f"{PREFIX}{step:08d}-{secrets.token_hex(4)}"
        self._write_index(self._entries, unused=[name])
        self._complete(CheckpointEntry(name, step, position, self._write_parts(name, arrays), score), on_saved)

    def _write_as_chief(
        self, name: str, position: dict[str, Any], fetch: Callable[[], Arrays], on_saved: Callable[[], None],
        score: float | None, processes: int,
    ) -> None:  # fmt: skip
        folder, step = self._checkpoints.folder(name), position["steps"]
        arrays = self._finite(fetch(), step)
        self._write_index(self._entries, unused=[name])  # before any process writes to it
        folder.write(BEGUN, b"")
        parts = self._write_parts(name, arrays)
        for process in range(1, processes):
            parts |= json.loads(_awaited(folder, f"parts-{process}.json", f"process {process} writes its part"))
        for file in (BEGUN, *(f"parts-{process}.json" for process in range(1, processes))):
            folder.remove(file)
        self._complete(CheckpointEntry(name, step, position, parts, score), on_saved)

    def _write_as_other(
        self, name: str, position: dict[str, Any], fetch: Callable[[], Arrays], _on_saved: Callable[[], None],
        _score: float | None, _processes: int,
    ) -> None:  # fmt: skip
        folder, arrays = self._checkpoints.folder(name), self._finite(fetch(), position["steps"])
        _awaited(folder, BEGUN, "the chief begins the checkpoint")
        parts = self._write_parts(name, arrays)
        folder.write(f"parts-{self._process_id}.json", json.dumps(parts).encode())

    def _finite(self, arrays: Arrays, step: int) -> Arrays:
        """The arrays; raises NotFiniteError."""
        wrong = [name for name, array in arrays.items() if not _is_finite(name, array)]
        if wrong:
            good = max((entry.step for entry in self._entries), default=None)
            raise NotFiniteError(
                f"{wrong[0]} is not finite after step {step}, which is not saved. "
                + ("There is no checkpoint" if good is None else f"The last good checkpoint is of step {good}")
                + ". The same command continues from there; to pass this step, lower --learning-rate."
            )
        return arrays

    def _write_parts(self, name: str, arrays: Arrays) -> dict[str, str]:
        """File -> SHA-256 of its content."""
        folder, parts = self._checkpoints.folder(name), {}
        for number, content in enumerate(encode(arrays), start=self._process_id * MOST_PARTS):
            part = f"part-{number:05d}.safetensors"
            parts[part] = _sha256(content)
            folder.write(part, content)
        return parts

    def _complete(self, entry: CheckpointEntry, on_saved: Callable[[], None]) -> None:
        """List a checkpoint whose parts are written."""
        # Later ones are damaged, as training did not resume from them.
        others = [other for other in self._entries if other.step < entry.step]
        kept = self._kept([*others, entry])
        unused = [old.name for old in self._entries if old not in kept]
        write_entry(self._checkpoints.folder(entry.name), self._fingerprint, entry)
        self._write_index(kept, unused)
        self._entries = kept
        on_saved()
        _remove(self._checkpoints, unused)

    def _kept(self, entries: list[CheckpointEntry]) -> list[CheckpointEntry]:
        """The newest entries and the best one."""
        newest, best = entries[-self._keep :], _best(entries)
        return newest if best is None or best in newest else [best, *newest]

    def _write_index(self, entries: list[CheckpointEntry], unused: Sequence[str] = ()) -> None:
        if self._lock is not None:
            self._lock.check()
        write_index(self._checkpoints, Index(self._fingerprint, entries, list(unused)))


def _awaited(folder: Folder, name: str, what: str) -> bytes:
    """The content of a file that another process writes. Raises StorageError if it does not."""
    deadline = time.monotonic() + TOGETHER_SECONDS
    while (data := folder.read(name)) is None:
        if time.monotonic() > deadline:
            raise StorageError(f"{folder.url}: after {TOGETHER_SECONDS:.0f} s this process still waits until {what}.")
        time.sleep(POLL)
    return data


def _comparable(score: float | None) -> float | None:
    """The score; None for NaN and infinity."""
    return score if score is not None and math.isfinite(score) else None


def _best(entries: Iterable[RatedT]) -> RatedT | None:
    """The first of those with the highest score."""
    rated = [entry for entry in entries if entry.score is not None]
    return max(rated, key=lambda entry: (entry.score, -entry.step), default=None)


def _is_finite(name: str, array: NDArray[Any]) -> bool:
    if name.startswith(".optimizer") and array.ndim == 0 and array.dtype.kind == "f":
        return not np.isnan(array)  # the best loss is infinite until there is one
    return array.dtype.kind in "iub?" or bool(np.isfinite(array).all())


def _remove(folder: Folder, names: list[str]) -> None:
    for name in names:
        folder.remove(name)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
