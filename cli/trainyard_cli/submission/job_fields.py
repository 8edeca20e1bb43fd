"""Fields of a job as configs and flags set them, in either spelling: `jobDir` or `job_dir`."""

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from trainyard_cli.submission.flag_types import ENGINE_OPTIONS
from trainyard_cli.submission.sweep import fields

Job = Mapping[str, Any]
Fields = Iterator[tuple[str, object]]
"""Paths with their values."""


def put(job: dict[str, Any], path: str, value: object) -> bool:
    """Set one field of a job in place, in the config's spelling. False if a parent is not a mapping."""
    node: Any = job
    *parents, last = path.split(".")
    for name in parents:
        key = spelling(node, name)
        if node.get(key) is None:
            node[key] = {}
        node = node[key]
        if not isinstance(node, dict):
            return False
    node[spelling(node, last)] = value
    return True


def get(job: Mapping[str, Any], path: str) -> Any:
    """One field of a job, in either spelling; None if absent."""
    node: Any = job
    for name in path.split("."):
        if not isinstance(node, Mapping):
            return None
        node = node.get(spelling(node, name))
    return node


def spelling(mapping: Mapping[Any, Any], name: str) -> str:
    """`name` (camelCase) as the mapping spells it: snake_case if it has that key."""
    other = snake(name)
    return other if other in mapping and name not in mapping else name


def snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def whole(path: str, value: Any, _job: Job) -> Fields:
    yield path, value


def constant(path: str, value: Any, _job: Job) -> Fields:
    """A name that the API has in capitals."""
    yield path, str(value).upper().replace("-", "_")


def number(path: str, value: Any, _job: Job) -> Fields:
    """A count, which the API has as text."""
    yield path, str(value)


def accelerator(path: str, value: Any, _job: Job) -> Fields:
    yield f"{path}.type", value["type"].upper().replace("-", "_")
    yield f"{path}.count", value.get("count", "1")


def labels(path: str, value: Any, _job: Job) -> Fields:
    yield path, {key: text for pairs in value for key, text in pairs.items()}


def secrets(path: str, value: Any, _job: Job) -> Fields:
    """References as gcloud writes them, `TARGET=NAME`: a path begins with a slash."""
    pairs = {target: name for pairs in value for target, name in pairs.items()}
    at = {target: "file" if target.startswith("/") else "env" for target in pairs}
    yield path, [{"name": name} | ({at[to]: to} if to != name else {}) for to, name in pairs.items()]


def env(path: str, value: Any, job: Job) -> Fields:
    given = get(job, path)
    yield path, {**(given if isinstance(given, Mapping) else {}), **dict(value)}


def env_files(path: str, value: Any, job: Job) -> Fields:
    return env(path, of_files(value), job)


def mounts(path: str, value: Any, job: Job) -> Fields:
    mounts = {name: {"name": name, **({"path": at} if at else {})} for name, at in value}
    yield path, [*_others(get(job, path), "name", mounts), *mounts.values()]


def notify(path: str, value: Any, job: Job) -> Fields:
    yield path, [*_others(get(job, path), "to", value), *({"to": to} for to in dict.fromkeys(value))]


def notify_on(path: str, value: Any, job: Job) -> Fields:
    events, present = {"events": list(value)}, _others(get(job, path), "", ())
    yield path, [{**item, **events} if isinstance(item, Mapping) else item for item in present] or [events]


def sweep(path: str, value: Any, job: Job) -> Fields:
    given = get(job, path)
    for name, item in fields(value, given if isinstance(given, Mapping) else {}).items():
        yield f"{path}.{name}", item


def _others(given: object, key: str, replaced: Container[object]) -> list[object]:
    """The entries of the config, which may be anything, but those whose key is replaced."""
    entries = given if isinstance(given, list | tuple) else ()
    return [item for item in entries if not (isinstance(item, Mapping) and item.get(key) in replaced)]


def of_files(files: Iterable[Iterable[tuple[str, str]]]) -> dict[str, str]:
    """The variables of all files; of a name the last value."""
    return {name: text for file in files for name, text in file}


def engine_options(path: str, options: Iterable[tuple[str, str, str, str]], job: Job) -> Fields:
    """The options by their paths. One that is a list has all values that are given, one that is a mapping also the
    config's."""
    values: dict[str, Any] = {}
    for engine, option, key, text in options:
        at = f"{path}.{engine}.{option}"
        if key:
            given = get(job, at)
            values.setdefault(at, dict(given) if isinstance(given, Mapping) else {})[key] = text
        elif ENGINE_OPTIONS[engine][option] is list:
            values.setdefault(at, []).append(text)
        else:
            values[at] = text
    yield from values.items()
