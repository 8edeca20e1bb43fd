"""Checkpoints and the exported model in --job-dir.

    checkpoints/index.json                       the training's fingerprint, and the kept checkpoints with hashes
    checkpoints/step-00000045-<random>/part-...  the state after 45 steps: safetensors of at most PART_BYTES each
    checkpoints/lock or lease.json               keeps other trainers out: see lease.py
    model/...                                    the exported model: see export.py
    logs/...                                     TensorBoard event files: see summaries.py

Only the chief writes. A checkpoint is written by a thread while training continues; its parts are written before the
index that lists it, so a listed checkpoint is complete. Only finite states are written. The newest --keep checkpoints
are kept, and the one with the best evaluation.
"""

import hashlib
import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, NamedTuple, Self

import ml_dtypes  # of JAX
import numpy as np
from numpy.typing import NDArray

from trainer.errors import CheckpointError, TrainerError
from trainer.output.lease import Lock, lock
from trainer.storage import Folder, open_folder

log = logging.getLogger("trainer")

INDEX = "index.json"
FORMAT = 2
PART_BYTES = 64 * 2**20
_DTYPES = {"BOOL": np.dtype(bool), "BF16": np.dtype(ml_dtypes.bfloat16)} | {
    f"{kind[0].upper()}{bits}": np.dtype(f"{kind}{bits}")
    for kind, sizes in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64)), ("float", (16, 32, 64)))
    for bits in sizes
}  # by their names in safetensors
CLOSE_SECONDS = 20.0  # for the upload in flight when training fails, and to unlock

Arrays = Mapping[str, NDArray[Any]]
Fingerprint = dict[str, Any]


class NotFiniteError(TrainerError):
    """The state has a NaN or an infinity, so it was not saved."""


class CheckpointEntry(NamedTuple):
    """A checkpoint that is listed in the index.

    Attributes:
        position: of state.TrainingPosition.
        parts: name -> SHA-256 of its content.
        score: of the evaluation of this state; the highest is the best.
    """

    name: str
    step: int
    position: dict[str, Any]
    parts: dict[str, str]
    score: float | None = None


class Saver:
    """Saves checkpoints and the model, if it is the chief's (process 0); any process may read them.

    A context manager: leaving it waits for the checkpoint that is being written and unlocks the job directory.
    """

    def __init__(self, job_dir: str, process_id: int, keep: int, every_seconds: float = 0) -> None:
        """`every_seconds`: see `is_due`."""
        self._job_dir = open_folder(job_dir)
        self._checkpoints = self._job_dir.folder("checkpoints")
        self._is_chief = process_id == 0
        self._keep = keep
        self._every_seconds = every_seconds
        self._fingerprint: Fingerprint = {}
        self._lock: Lock | None = None
        self._entries: list[CheckpointEntry] = []  # of the index, which nobody else changes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._writing: Future[None] | None = None
        self._last_start = time.monotonic()

    def prepare(self, fingerprint: Fingerprint) -> None:
        """Lock the job directory for a training.

        Raises:
            JobDirLockedError: another trainer writes to it.
            CheckpointError: it has checkpoints of a training with another fingerprint.
        """
        self._lock = lock(self._checkpoints)
        theirs = self._index().get("fingerprint") or fingerprint
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
        self._fingerprint, self._entries = fingerprint, self.checkpoints()

    def checkpoints(self) -> list[CheckpointEntry]:
        """The checkpoints of the index, oldest first."""
        return [CheckpointEntry(**entry) for entry in self._index().get("checkpoints", [])]

    def newest(self) -> tuple[CheckpointEntry, dict[str, NDArray[Any]]] | None:
        """The newest undamaged checkpoint and its arrays; None if there is none."""
        for entry in sorted(self.checkpoints(), key=lambda entry: entry.step, reverse=True):
            arrays = self.read(entry)
            if arrays is not None:
                return entry, arrays
            log.warning("%s/%s is missing or damaged; using an older one.", self._checkpoints.url, entry.name)
        return None

    def read(self, entry: CheckpointEntry) -> dict[str, NDArray[Any]] | None:
        """The arrays of a checkpoint; None if it was removed or a part does not match its hash."""
        folder = self._checkpoints.folder(entry.name)
        pieces: dict[str, list[NDArray[Any]]] = {}
        for name, sha256 in entry.parts.items():
            data = folder.read(name)
            if data is None or _sha256(data) != sha256:
                return None
            for key, piece in _arrays(data):
                pieces.setdefault(key.partition("#")[0], []).append(piece)
        return {
            name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in pieces.items()
        }

    def is_due(self) -> bool:
        """Whether `every_seconds` have passed since the start of the last save (0: never), and none is in progress."""
        return bool(
            self._is_chief
            and self._every_seconds
            and time.monotonic() - self._last_start >= self._every_seconds
            and (self._writing is None or self._writing.done())
        )

    def save(
        self,
        position: Mapping[str, Any],
        fetch: Callable[[], Arrays],
        on_saved: Callable[[], None],
        score: float | None = None,
    ) -> None:
        """Write a checkpoint in the background, after the one that is being written.

        Args:
            position: of state.TrainingPosition.
            fetch: the state's arrays on the host; called by the thread, so that it may wait for the devices.
            on_saved: called when the checkpoint is in the index.
            score: of the state's evaluation; the highest is the best.

        Raises:
            NotFiniteError: the state that was saved before was not finite.
            StorageError, JobDirLockedError: it could not be written.
        """
        if not self._is_chief:
            return
        self.wait()
        self._last_start = time.monotonic()
        self._writing = self._thread.submit(self._write, dict(position), fetch, on_saved, score)

    def best(self) -> tuple[CheckpointEntry, dict[str, NDArray[Any]]] | None:
        """The checkpoint with the highest score and its arrays; None if there is none, or it is damaged."""
        entry = _best(self.checkpoints())
        arrays = self.read(entry) if entry else None
        if entry is None or arrays is None:
            log.warning("There is no checkpoint of the best evaluation in %s.", self._checkpoints.url)
            return None
        return entry, arrays

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is complete; raises what `save` does."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def save_model(self, files: dict[str, bytes]) -> str:
        """Write a model (see export.py), replacing an earlier one; returns its URL."""
        folder = self._job_dir.folder("model")
        if self._is_chief:
            for name, data in files.items():  # the last one refers to the others
                folder.write(name, data)
            _remove(folder, [name for name in folder.children() if name not in files])
        return folder.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.wait()
            elif self._writing is not None and wait([self._writing], CLOSE_SECONDS).not_done:
                log.warning("A checkpoint was being written and is incomplete; the one before is the newest.")
        finally:
            if self._lock is not None:
                releasing = self._thread.submit(self._lock.release)
                if wait([releasing], CLOSE_SECONDS).not_done or releasing.exception() is not None:
                    log.warning("--job-dir %s could not be unlocked.", self._job_dir.url)
            self._thread.shutdown(wait=False)

    def _write(
        self,
        position: dict[str, Any],
        fetch: Callable[[], Arrays],
        on_saved: Callable[[], None],
        score: float | None,
    ) -> None:
        arrays, step = fetch(), position["steps"]
        wrong = [name for name, array in arrays.items() if not _is_finite(array)]
        if wrong:
            good = max((entry.step for entry in self._entries), default=None)
            raise NotFiniteError(
                f"{wrong[0]} is not finite after step {step}, which is not saved. "
                + (
                    "There is no checkpoint"
                    if good is None
                    else f"The last good checkpoint is of step {good}"
                )
                + ". The same command continues from there; to pass this step, lower --learning-rate."
            )
        name = f"step-{step:08d}-{secrets.token_hex(4)}"
        folder, parts = self._checkpoints.folder(name), {}
        for number, content in enumerate(_parts(arrays)):
            part = f"part-{number:05d}.safetensors"
            parts[part] = _sha256(content)
            folder.write(part, content)
        rated = score is not None and math.isfinite(score)
        entry = CheckpointEntry(name, step, position, parts, score if rated else None)
        # Later ones are damaged, as training did not resume from them.
        others = [other for other in self._entries if other.step < step]
        kept = self._kept([*others, entry])
        self._write_index(kept)
        self._entries = kept
        on_saved()
        names = {other.name for other in kept}
        _remove(self._checkpoints, [old for old in self._checkpoints.children("step-") if old not in names])

    def _kept(self, entries: list[CheckpointEntry]) -> list[CheckpointEntry]:
        """The newest entries and the best one."""
        newest, best = entries[-self._keep :], _best(entries)
        return newest if best is None or best in newest else [best, *newest]

    def _write_index(self, entries: list[CheckpointEntry]) -> None:
        if self._lock is not None:
            self._lock.check()
        index = {
            "format": FORMAT,
            "fingerprint": self._fingerprint,
            "checkpoints": [entry._asdict() for entry in entries],
        }
        self._checkpoints.write(INDEX, json.dumps(index, indent=2).encode() + b"\n")

    def _index(self) -> dict[str, Any]:
        data = self._checkpoints.read(INDEX)
        index: dict[str, Any] = json.loads(data) if data else {}
        if index and index.get("format") != FORMAT:
            raise CheckpointError(
                f"--job-dir {self._job_dir.url} has checkpoints of another version of the trainer; choose another "
                "--job-dir."
            )
        return index


def _best(entries: list[CheckpointEntry]) -> CheckpointEntry | None:
    """The first of those with the highest score."""
    rated = [entry for entry in entries if entry.score is not None]
    return max(rated, key=lambda entry: (entry.score, -entry.step), default=None)


def _parts(arrays: Arrays) -> Iterator[bytes]:
    """The arrays as safetensors, each of about PART_BYTES; one that is larger is cut, as NAME#0, NAME#1, ..."""
    import safetensors.numpy

    part: dict[str, NDArray[Any]] = {}
    size = 0
    for name, array in _pieces(arrays):
        if part and size + array.nbytes > PART_BYTES:
            yield safetensors.numpy.save(part)
            part, size = {}, 0
        part[name] = array
        size += array.nbytes
    if part:
        yield safetensors.numpy.save(part)


def _pieces(arrays: Arrays) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, array in arrays.items():
        rows = max(1, PART_BYTES * len(array) // array.nbytes) if array.ndim and array.nbytes else 0
        if array.nbytes <= PART_BYTES or len(array) <= 1:
            yield name, np.ascontiguousarray(array).reshape(array.shape)
        else:
            for number, start in enumerate(range(0, len(array), rows)):
                yield f"{name}#{number}", np.ascontiguousarray(array[start : start + rows])


def _arrays(part: bytes) -> Iterator[tuple[str, NDArray[Any]]]:
    """Like `safetensors.numpy.load`, which reads no bfloat16 (an optimizer's state can have it: `mu_dtype` of Adam)."""
    import safetensors

    for name, stored in safetensors.deserialize(part):  # type: ignore[no-untyped-call]
        yield name, np.frombuffer(stored["data"], _DTYPES[stored["dtype"]]).reshape(stored["shape"])


def _is_finite(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "iub?" or bool(np.isfinite(array).all())


def _remove(folder: Folder, names: list[str]) -> None:
    for name in names:
        folder.remove(name)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
