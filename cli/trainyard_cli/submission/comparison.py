"""Comparison of jobs, field by field: of a submission with the job that has its name already, and of two jobs. Pure.

A package is its content: the hash in its address, whatever the place it was uploaded to.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
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
            f"{lines}\nChoose another name for the new content."
        )


def differences(existing: Mapping[str, Any], requested: Mapping[str, Any]) -> list[str]:
    """One line for each field that differs, by name."""
    ours, theirs = dict(_fields(requested)), dict(_fields(existing))
    return [
        f"{name}: the job has {_text(theirs, name)}; this submission has {_text(ours, name)}"
        for name in sorted(ours.keys() | theirs.keys())
        if _identity(ours.get(name)) != _identity(theirs.get(name))
    ]


def compared(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The differences of two jobs, each as an answer of the API with its `metrics` and its `origin`: `field`, and its
    value in the `first` and the `second`, "" where one has none. Arguments are compared flag by flag, and come
    first."""
    ours, theirs = _described(first), _described(second)
    names = [name for name in {**ours, **theirs} if _identity(ours.get(name)) != _identity(theirs.get(name))]
    order = {"args": 0, "trainingInput": 1, "labels": 2, "origin": 3, "metrics": 5}
    names.sort(key=lambda name: order.get(name.partition(".")[0], 4))
    return [
        {"field": name.removeprefix("trainingInput."), "first": _plain(ours, name), "second": _plain(theirs, name)}
        for name in names
    ]


def _described(job: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(job.get("trainingInput", {}))
    words = given.pop("args", [])
    return {
        **{f"args.{name}": values or "set" for name, values in _by_flag(words).items()},
        **dict(_fields({"trainingInput": given})),
        **{f"labels.{name}": value for name, value in job.get("labels", {}).items()},
        **{f"origin.{name}": value for name, value in _origin(job.get("origin", {})).items()},
        **{name: job[name] for name in ("state", "exitCode") if name in job},
        **{f"metrics.{name}": value for name, value in job.get("metrics", {}).items()},
    }


def _origin(origin: Mapping[str, Any]) -> dict[str, str]:
    """The parts of an origin that can differ. The changes of a tree are compared as a whole, by their digest."""
    tree = origin.get("git") or {}
    described = {name: str(tree.get(name) or "") for name in ("commit", "branch", "remote")}
    files = [*tree.get("changed", ()), *tree.get("untracked", ())]
    if files:
        digest = hashlib.sha256(json.dumps([files, tree.get("diff")]).encode()).hexdigest()
        described["changes"] = f"{len(files)} file{'' if len(files) == 1 else 's'} (SHA-256 {digest[:12]})"
    described |= {name: str(origin.get(name) or "") for name in ("client", "python")}
    resolved = origin.get("resolved") or {}
    described |= {f"image.{name}": str(digest) for name, digest in resolved.get("images", {}).items()}
    versions = (line.partition("==") for line in resolved.get("requirements", "").splitlines())
    described |= {f"requirements.{name}": version for name, _, version in versions}
    return {name: text for name, text in described.items() if text}


def _by_flag(words: Iterable[str]) -> dict[str, list[str]]:
    """Arguments by their flags, with the values of each: of `--lr 0.1`, `--lr=0.1` and `lr=0.1`; a word by itself under
    its place."""
    found: dict[str, list[str]] = {}
    flag = ""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if is_flag(word):
            found.setdefault(name, []).extend([value] if equals else [])
            flag = "" if equals else name
        elif flag:
            found[flag].append(word)
            flag = ""
        elif equals:
            found.setdefault(name, []).append(value)
        else:
            found[str(place)] = [word]
    return found


def package_digest(uri: str) -> str:
    """The SHA-256 of a package that its URI has; "" where it has none."""
    match = _HASHED.fullmatch(uri)
    return match[1] if match else ""


def is_flag(word: str) -> bool:
    """Whether a word is a flag and no value; a negative number is a value."""
    return re.match(r"--?[A-Za-z]", word) is not None


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


def _plain(fields: Mapping[str, Any], name: str) -> str:
    """A value for a table, without the quotes of JSON; "" if there is none."""
    value = fields.get(name, "")
    is_text = isinstance(value, str) and not _HASHED.fullmatch(value)
    return value[:_SHOWN] if is_text else _text(fields, name)


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
