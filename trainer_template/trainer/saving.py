"""Checkpoints and the model, under --job-dir.

    checkpoints/step-00000045-<hash>.msgpack     the state after 45 steps
    checkpoints/index.json                       names the newest --keep of them; one it does not name does not exist
    model/...                                    what was learned, ready to be called: see export.py
    logs/...                                     curves for TensorBoard: see summaries.py
    workertemp_<process id>/...                  checkpoints and model of a process that is not the chief, till the end

Each file is written before the one that names it, so what can be found is whole, even where files cannot be renamed.
The processes all run the same code, as a save may need all of them; only the chief's files stay.
"""

import hashlib
import json
import logging
from typing import NamedTuple

from trainer.storage import Folder, open_folder

log = logging.getLogger("trainer")

INDEX = "index.json"
WORKER_TEMP = "workertemp_"


class Entry(NamedTuple):
    """A checkpoint that counts."""

    name: str
    step: int
    sha256: str


class Saver:
    """What one process saves. Process 0 is the chief and writes to the job's directory itself."""

    def __init__(self, job_dir: str, process_id: int, keep: int) -> None:
        self._job_dir = open_folder(job_dir)
        self._temp = f"{WORKER_TEMP}{process_id}" if process_id else None
        self._own = self._job_dir.folder(self._temp) if self._temp else self._job_dir
        self._checkpoints = self._own.folder("checkpoints")
        self._keep = keep

    def prepare(self) -> None:
        """Remove the temporary directories that an earlier run left when it was killed.

        The chief removes all of them (there may have been more processes then), so no other process may save before
        the chief is through; the others remove their own, for a job directory on a disk that the chief does not see.
        """
        for name in [self._temp] if self._temp else self._job_dir.children(WORKER_TEMP):
            self._job_dir.remove(name)

    def newest_checkpoint(self) -> bytes:
        """The newest checkpoint of this process's directory that is whole; b"" if there is none."""
        for entry in reversed(self.checkpoints()):
            data = self.read_checkpoint(entry)
            if data is not None:
                return data
            log.warning(
                "%s/%s is missing or damaged; trying an older one.", self._checkpoints.url, entry.name
            )
        return b""

    def checkpoints(self) -> list[Entry]:
        """Those that count, oldest first."""
        data = self._checkpoints.read(INDEX)
        return [Entry(**entry) for entry in json.loads(data)["checkpoints"]] if data else []

    def read_checkpoint(self, entry: Entry) -> bytes | None:
        """None if it is not there any more, or not as it was written."""
        data = self._checkpoints.read(entry.name)
        return data if data is not None and _sha256(data) == entry.sha256 else None

    def save_checkpoint(self, step: int, data: bytes) -> None:
        """Add a checkpoint, then let go of those that are too old."""
        sha256 = _sha256(data)
        entry = Entry(f"step-{step:08d}-{sha256[:8]}.msgpack", step, sha256)
        self._checkpoints.write(entry.name, data)
        others = [other for other in self.checkpoints() if other.name != entry.name]
        kept = [*others, entry][-self._keep :]
        index = {"checkpoints": [other._asdict() for other in kept]}
        self._checkpoints.write(INDEX, json.dumps(index, indent=2).encode() + b"\n")
        _remove_all_but(self._checkpoints, {INDEX, *(other.name for other in kept)})

    def save_model(self, files: dict[str, bytes]) -> str:
        """Put a model (see export.py) in the place of an earlier one; returns where it is."""
        folder = self._own.folder("model")
        for name, data in files.items():  # the last one names the others
            folder.write(name, data)
        _remove_all_but(folder, set(files))
        return folder.url

    def close(self) -> None:
        """Remove this process's temporary directory."""
        if self._temp:
            self._job_dir.remove(self._temp)


def _remove_all_but(folder: Folder, names: set[str]) -> None:
    for name in folder.children():
        if name not in names:
            folder.remove(name)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
