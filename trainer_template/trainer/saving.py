"""Checkpoints and the model, under --job-dir.

    checkpoints/step-00000045-<hash>.msgpack     the state after 45 steps
    checkpoints/index.json                       names the newest --keep of them; one it does not name does not exist
    model/parameters-<hash>.msgpack              what was learned
    model/model.json                             names the parameters, and says how to call the model
    workertemp_<process id>/...                  the same, by a process that is not the chief; removed at the end

Each file is written before the one that names it, so what can be found is whole, even where files cannot be renamed.
The processes all run the same code, as a save may need all of them; only the chief's files stay.
"""

import dataclasses
import hashlib
import json
import logging
from typing import Any

import flax.serialization
import flax.traverse_util
import numpy as np

from trainer.storage import Folder, open_folder

log = logging.getLogger("trainer")

PyTree = Any

INDEX = "index.json"
MODEL = "model.json"
WORKER_TEMP = "workertemp_"


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
        for entry in reversed(self._index()):
            data = self._checkpoints.read(entry["name"])
            if data is not None and _sha256(data) == entry["sha256"]:
                return data
            log.warning(
                "%s/%s is missing or damaged; trying an older one.", self._checkpoints.url, entry["name"]
            )
        return b""

    def save_checkpoint(self, step: int, data: bytes) -> None:
        """Add a checkpoint, then let go of those that are too old."""
        sha256 = _sha256(data)
        name = f"step-{step:08d}-{sha256[:8]}.msgpack"
        self._checkpoints.write(name, data)
        others = [entry for entry in self._index() if entry["name"] != name]
        kept = [*others, {"name": name, "step": step, "sha256": sha256}][-self._keep :]
        self._checkpoints.write(INDEX, _json({"checkpoints": kept}))
        _remove_all_but(self._checkpoints, {INDEX, *(entry["name"] for entry in kept)})

    def save_model(self, params: PyTree, description: dict[str, Any]) -> str:
        """Put the model in the place of an earlier one; returns where it is."""
        folder = self._own.folder("model")
        data = flax.serialization.to_bytes(params)
        name = f"parameters-{_sha256(data)[:8]}.msgpack"
        folder.write(name, data)
        folder.write(
            MODEL, _json(description | {"file": name, "parameters_sha256": parameters_sha256(params)})
        )
        _remove_all_but(folder, {MODEL, name})
        return folder.url

    def close(self) -> None:
        """Remove this process's temporary directory."""
        if self._temp:
            self._job_dir.remove(self._temp)

    def _index(self) -> list[dict[str, Any]]:
        """The entries of the checkpoints that count, oldest first."""
        data = self._checkpoints.read(INDEX)
        entries: list[dict[str, Any]] = json.loads(data)["checkpoints"] if data else []
        return entries


@dataclasses.dataclass(frozen=True)
class SavedModel:
    params: PyTree
    description: dict[str, Any]


def load_model(url: str) -> SavedModel:
    """The model that `save_model` put in this directory.

    Raises:
        FileNotFoundError: there is none.
        ValueError: its parameters are not those that were saved.
    """
    folder = open_folder(url)
    description_json = folder.read(MODEL)
    if description_json is None:
        raise FileNotFoundError(f"there is no model in {folder.url}")
    description = json.loads(description_json)
    data = folder.read(description["file"])
    if data is None:
        raise FileNotFoundError(f"{folder.url}/{description['file']} is missing")
    params = flax.serialization.msgpack_restore(data)
    if parameters_sha256(params) != description["parameters_sha256"]:
        raise ValueError(f"{folder.url}/{description['file']} is damaged")
    return SavedModel(params, description)


def parameters_sha256(params: PyTree) -> str:
    """One hash for names, types, shapes and values of all parameters: equal where the parameters are, bit for bit."""
    digest = hashlib.sha256()
    for name, value in sorted(flax.traverse_util.flatten_dict(params, sep="/").items()):
        array = np.asarray(value)
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _remove_all_but(folder: Folder, names: set[str]) -> None:
    for name in folder.children():
        if name not in names:
            folder.remove(name)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"
