"""Comparison of a submission with the job that has its name already, field by field. Pure.

A package is its content: the hash in its address, whatever the place it was uploaded to.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard_protocol.errors import AlreadyExists

_HASHED = re.compile(r"(?:staging://|gs://.+/)([0-9a-f]{64})/([^/]+)")
_SHOWN = 300  # characters of a value


def check_same(job: Mapping[str, Any], requested: Mapping[str, Any]) -> None:
    """Raise AlreadyExists, with each difference, unless the job has the requested (canonical) training input."""
    changes = differences(job.get("trainingInput", {}), requested)
    if changes:
        lines = "\n".join(f"  {line}" for line in changes)
        raise AlreadyExists(
            f"The job {job.get('jobId')} exists ({job.get('state')}) with other content; nothing was submitted.\n"
            f"{lines}\nGive the new content a name of its own."
        )


def differences(existing: Mapping[str, Any], requested: Mapping[str, Any]) -> list[str]:
    """One line for each field that differs, by name."""
    ours, theirs = dict(_fields(requested)), dict(_fields(existing))
    return [
        f"{name}: the job has {_text(theirs, name)}; this submission has {_text(ours, name)}"
        for name in sorted(ours.keys() | theirs.keys())
        if _identity(ours.get(name)) != _identity(theirs.get(name))
    ]


def _fields(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves by their paths. A list of strings, such as the arguments, is one leaf; packages are not."""
    for name, inner in value.items():
        where = f"{path}{name}"
        if isinstance(inner, Mapping) and inner:
            yield from _fields(inner, path=f"{where}.")
        elif isinstance(inner, list) and (name == "packageUris" or not _is_words(inner)):
            yield from _fields({f"{where}[{index}]": item for index, item in enumerate(inner)})
        else:
            yield where, inner


def _is_words(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _identity(value: Any) -> Any:
    """A package by its hash; anything else as it is."""
    match = _HASHED.fullmatch(value) if isinstance(value, str) else None
    return match[1] if match else value


def _text(fields: Mapping[str, Any], name: str) -> str:
    """A value for people, without control characters."""
    if name not in fields:
        return "none"
    value = fields[name]
    if isinstance(value, str) and (match := _HASHED.fullmatch(value)):
        text = f"{match[2]} (SHA-256 {match[1][:12]})"
    elif isinstance(value, list) and _is_words(value):
        text = shlex.join(value) or "none"
    else:
        text = json.dumps(value, ensure_ascii=False)
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
