"""The list of the checkpoints in a job directory.

    checkpoints/index.json             the training's fingerprint, and the checkpoints that count
    checkpoints/step-.../entry.json    the same of one checkpoint, written when all its parts are there

The index is replaced as a whole. Its `unused` names folders before they are written and after they are replaced, so
that what a killed process leaves can be removed; no other folder ever is. `rebuild` makes a lost index anew.
"""

import json
import logging
import re
from types import NoneType
from typing import Any, NamedTuple

from trainyard_trainer.errors import CheckpointError
from trainyard_trainer.storage import Folder

log = logging.getLogger("trainer")

INDEX = "index.json"
ENTRY = "entry.json"
FORMAT = 2
PREFIX = "step-"
_FOLDER = re.compile(r"step-\d{8,}-\w+")
_PART = re.compile(r"part-\d{5,}\.safetensors")

Fingerprint = dict[str, Any]
Types = dict[str, tuple[type, ...]]

_POSITION: Types = {  # of state.TrainingPosition, whose module imports JAX
    "steps": (int,), "epochs": (int,), "examples": (int,), "best": (float, int, NoneType), "best_epochs": (int,),
}  # fmt: skip
_ENTRY: Types = {
    "name": (str,), "step": (int,), "position": (dict,), "parts": (dict,), "score": (float, int, NoneType),
}  # fmt: skip


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


class Index(NamedTuple):
    """The content of index.json; `unused` are names of folders that can be removed."""

    fingerprint: Fingerprint
    entries: list[CheckpointEntry]
    unused: list[str]


def read_index(folder: Folder) -> Index | None:
    """The index of `checkpoints`; None if it is missing or damaged.

    Raises:
        CheckpointError: it is of another version of the trainer.
    """
    content = _read(folder, INDEX)
    if content is None:
        return None
    entries = content.get("checkpoints")
    parsed = [_entry(value) for value in entries] if isinstance(entries, list) else [None]
    unused = content.get("unused", [])
    fingerprint = _fingerprint(content)
    if (
        None in parsed
        or fingerprint is None
        or not isinstance(unused, list)
        or not all(isinstance(name, str) and _FOLDER.fullmatch(name) for name in unused)
    ):
        return None
    return Index(fingerprint, [entry for entry in parsed if entry is not None], unused)


def write_index(folder: Folder, index: Index) -> None:
    entries = [entry._asdict() for entry in index.entries]
    _write(folder, INDEX, index.fingerprint, {"checkpoints": entries, "unused": index.unused})


def write_entry(folder: Folder, fingerprint: Fingerprint, entry: CheckpointEntry) -> None:
    """Complete the folder of a checkpoint whose parts are written."""
    _write(folder, ENTRY, fingerprint, {"checkpoint": entry._asdict()})


def rebuild(folder: Folder, read: Index | None) -> Index:
    """The index by the folders of complete checkpoints, for one that is missing or damaged, or lists none (`read`).

    Raises:
        CheckpointError: it is missing or damaged, there are folders, and none says what it has.
    """
    unused = read.unused if read else []
    names = [name for name in folder.children(PREFIX) if name not in unused]
    described = [(name, _described(folder, name)) for name in names]
    complete = sorted((pair for _, pair in described if pair), key=lambda pair: pair[0].step)
    if not complete and names and read is None:
        raise CheckpointError(
            f"{folder.url}/{INDEX} is missing or damaged, and the {len(names)} folders beside it do not say what they "
            "have, as those of an earlier version of the trainer or of a checkpoint that was cut off. Nothing was "
            f"changed. Restore {INDEX}, choose another --job-dir, or remove these folders to start anew."
        )
    if not complete:
        return read or Index({}, [], [])
    fingerprint = complete[-1][1]
    entries = [entry for entry, theirs in complete if theirs == fingerprint]
    listed = {entry.name for entry in entries}
    log.warning(
        "%s/%s is missing or damaged: it was made anew from the folders beside it, with the checkpoints of steps %s.",
        folder.url, INDEX, ", ".join(str(entry.step) for entry in entries),
    )  # fmt: skip
    if left := [name for name in names if name not in listed]:
        log.warning(
            "Left, but not in it, are %s: their %s is missing, damaged or of another training.", ", ".join(left), ENTRY
        )
    return Index(fingerprint, entries, unused)


def _described(folder: Folder, name: str) -> tuple[CheckpointEntry, Fingerprint] | None:
    """Read entry.json of a checkpoint's folder; None if there is none, or of another version."""
    try:
        content = _read(folder.folder(name), ENTRY) or {}
    except CheckpointError:  # of another version
        return None
    entry, fingerprint = _entry(content.get("checkpoint")), _fingerprint(content)
    return (entry, fingerprint) if entry and fingerprint and entry.name == name else None


def _read(folder: Folder, name: str) -> dict[str, Any] | None:
    """A JSON object; None if there is none."""
    try:
        content = json.loads(folder.read(name) or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    if content.get("format") != FORMAT:
        raise CheckpointError(f"{folder.url}/{name} is of another version of the trainer; choose another --job-dir.")
    return content


def _write(folder: Folder, name: str, fingerprint: Fingerprint, content: dict[str, Any]) -> None:
    whole = {"format": FORMAT, "fingerprint": fingerprint, **content}
    folder.write(name, json.dumps(whole, indent=2).encode() + b"\n")


def _fingerprint(content: dict[str, Any]) -> Fingerprint | None:
    """None if it is none."""
    fingerprint = content.get("fingerprint")
    return fingerprint if isinstance(fingerprint, dict) and fingerprint else None


def _entry(value: Any) -> CheckpointEntry | None:
    """None if it is none."""
    if not (_has_types(value, _ENTRY) and _has_types(value["position"], _POSITION)):
        return None
    entry = CheckpointEntry(**value)
    is_entry = (
        _FOLDER.fullmatch(entry.name)
        and entry.position["steps"] == entry.step
        and entry.parts
        and all(_PART.fullmatch(part) and isinstance(sha256, str) for part, sha256 in entry.parts.items())
    )
    return entry if is_entry else None


def _has_types(value: Any, types: Types) -> bool:
    """Whether it is an object of exactly these fields."""
    return (
        isinstance(value, dict)
        and value.keys() == types.keys()
        and all(type(value[name]) in allowed for name, allowed in types.items())
    )
