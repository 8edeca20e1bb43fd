"""Fields of a job that flags set."""

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from trainyard_cli.submission.flag_types import ENGINE_OPTIONS
from trainyard_cli.submission.job_data import JobData
from trainyard_cli.submission.sweep import fields

Fields = Iterator[tuple[str, object]]
"""Paths with their values."""


def whole(path: str, value: Any, _job: JobData) -> Fields:
    yield path, value


def constant(path: str, value: Any, _job: JobData) -> Fields:
    """A name that the API has in capitals."""
    yield path, str(value).upper().replace("-", "_")


def number(path: str, value: Any, _job: JobData) -> Fields:
    """A count, which the API has as text."""
    yield path, str(value)


def joined(path: str, value: Any, _job: JobData) -> Fields:
    """The words of a list that was given in several parts."""
    yield path, [word for words in value for word in words]


def accelerator(path: str, value: Any, _job: JobData) -> Fields:
    yield f"{path}.type", value["type"].upper().replace("-", "_")
    yield f"{path}.count", value.get("count", "1")


def labels(path: str, value: Any, _job: JobData) -> Fields:
    yield path, {key: text for pairs in value for key, text in pairs.items()}


def secrets(path: str, value: Any, _job: JobData) -> Fields:
    """References as gcloud writes them, `TARGET=NAME`: a path begins with a slash."""
    pairs = {target: name for pairs in value for target, name in pairs.items()}
    at = {target: "file" if target.startswith("/") else "env" for target in pairs}
    yield path, [{"name": name} | ({at[to]: to} if to != name else {}) for to, name in pairs.items()]


def env(path: str, value: Any, job: JobData) -> Fields:
    given = job.get(path)
    yield path, {**(given if isinstance(given, Mapping) else {}), **dict(value)}


def env_files(path: str, value: Any, job: JobData) -> Fields:
    return env(path, of_files(value), job)


def mounts(path: str, value: Any, job: JobData) -> Fields:
    mounts = {name: {"name": name, **({"path": at} if at else {})} for name, at in value}
    yield path, [*_others(job.get(path), "name", mounts), *mounts.values()]


def notify(path: str, value: Any, job: JobData) -> Fields:
    yield path, [*_others(job.get(path), "to", value), *({"to": to} for to in dict.fromkeys(value))]


def notify_on(path: str, value: Any, job: JobData) -> Fields:
    events, present = {"events": list(value)}, _others(job.get(path), "", ())
    yield path, [{**item, **events} if isinstance(item, Mapping) else item for item in present] or [events]


def sweep(path: str, value: Any, job: JobData) -> Fields:
    given = job.get(path)
    for name, item in fields(value, given if isinstance(given, Mapping) else {}).items():
        yield f"{path}.{name}", item


def _others(given: object, key: str, replaced: Container[object]) -> list[object]:
    """The entries of the config, which may be anything, but those whose key is replaced."""
    entries = given if isinstance(given, list | tuple) else ()
    return [item for item in entries if not (isinstance(item, Mapping) and item.get(key) in replaced)]


def of_files(files: Iterable[Iterable[tuple[str, str]]]) -> dict[str, str]:
    """The variables of all files; of a name the last value."""
    return {name: text for file in files for name, text in file}


def engine_options(path: str, options: Iterable[tuple[str, str, str, str]], job: JobData) -> Fields:
    """The options by their paths. One that is a list has all values that are given, one that is a mapping also the
    config's."""
    values: dict[str, Any] = {}
    for engine, option, key, text in options:
        at = f"{path}.{engine}.{option}"
        if key:
            given = job.get(at)
            values.setdefault(at, dict(given) if isinstance(given, Mapping) else {})[key] = text
        elif ENGINE_OPTIONS[engine][option] is list:
            values.setdefault(at, []).append(text)
        else:
            values[at] = text
    yield from values.items()
