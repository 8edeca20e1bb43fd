"""Checkpoints and the exported model in --job-dir.

    checkpoints/step-00000045-<hash>.msgpack     the state after 45 steps
    checkpoints/index.json                       the newest --keep checkpoints; files that are not listed are ignored
    model/...                                    the exported model: see export.py
    logs/...                                     TensorBoard event files: see summaries.py
    workertemp_<process id>/...                  the same of a process that is not the chief, removed at the end

A file is written before the index that lists it, so a listed checkpoint is complete. All processes run the same code,
since saving may become a collective operation; only the chief's files are kept.
"""

import hashlib
import json
import logging
from typing import NamedTuple

from trainer.storage import Folder, open_folder

log = logging.getLogger("trainer")

INDEX = "index.json"
WORKER_TEMP = "workertemp_"


class CheckpointEntry(NamedTuple):
    """A checkpoint that is listed in the index."""

    name: str
    step: int
    sha256: str


class Saver:
    """Saves checkpoints and the model of one process; process 0, the chief, writes directly to the job directory."""

    def __init__(self, job_dir: str, process_id: int, keep: int) -> None:
        self._job_dir = open_folder(job_dir)
        self._temp = f"{WORKER_TEMP}{process_id}" if process_id else None
        self._own = self._job_dir.folder(self._temp) if self._temp else self._job_dir
        self._checkpoints = self._own.folder("checkpoints")
        self._keep = keep

    def prepare(self) -> None:
        """Remove the temporary directories of an earlier run that was killed.

        The chief removes all of them, as there may have been more processes, so no process may save before the chief
        has returned. The others remove their own, which may be on a disk that the chief does not see.
        """
        for name in [self._temp] if self._temp else self._job_dir.children(WORKER_TEMP):
            self._job_dir.remove(name)

    def newest_checkpoint(self) -> bytes:
        """The newest undamaged checkpoint of this process's directory; b"" if there is none."""
        for entry in reversed(self.checkpoints()):
            data = self.read_checkpoint(entry)
            if data is not None:
                return data
            log.warning("%s/%s is missing or damaged; using an older one.", self._checkpoints.url, entry.name)
        return b""

    def checkpoints(self) -> list[CheckpointEntry]:
        """The checkpoints of the index, oldest first."""
        data = self._checkpoints.read(INDEX)
        return [CheckpointEntry(**entry) for entry in json.loads(data)["checkpoints"]] if data else []

    def read_checkpoint(self, entry: CheckpointEntry) -> bytes | None:
        """None if it was removed or does not match its hash."""
        data = self._checkpoints.read(entry.name)
        return data if data is not None and _sha256(data) == entry.sha256 else None

    def save_checkpoint(self, step: int, data: bytes) -> None:
        """Write a checkpoint, then remove those that exceed --keep."""
        sha256 = _sha256(data)
        entry = CheckpointEntry(f"step-{step:08d}-{sha256[:8]}.msgpack", step, sha256)
        self._checkpoints.write(entry.name, data)
        others = [other for other in self.checkpoints() if other.name != entry.name]
        newest = [*others, entry][-self._keep :]
        index = {"checkpoints": [other._asdict() for other in newest]}
        self._checkpoints.write(INDEX, json.dumps(index, indent=2).encode() + b"\n")
        _remove_others(self._checkpoints, {INDEX, *(other.name for other in newest)})

    def save_model(self, files: dict[str, bytes]) -> str:
        """Write a model (see export.py), replacing an earlier one; returns its URL."""
        folder = self._own.folder("model")
        for name, data in files.items():  # the last one refers to the others
            folder.write(name, data)
        _remove_others(folder, set(files))
        return folder.url

    def close(self) -> None:
        """Remove this process's temporary directory."""
        if self._temp:
            self._job_dir.remove(self._temp)


def _remove_others(folder: Folder, names: set[str]) -> None:
    for name in folder.children():
        if name not in names:
            folder.remove(name)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
