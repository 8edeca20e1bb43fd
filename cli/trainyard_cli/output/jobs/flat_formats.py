"""gcloud's formats `flattened`, `config` and `list`, and `--flatten`: nested resources as lines. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_SLICE = re.compile(r"\[\]")


def separated(resources: Sequence[Any], keys: Iterable[str]) -> list[Any]:
    """A resource for each item of the list at a key, in place of that list; one key after the other. What has no list
    there stays as it is."""
    separate = list(resources)
    for key in keys:
        for path in _paths(key):
            separate = [part for resource in separate for part in _items(resource, path)]
    return separate


def _paths(key: str) -> Iterator[list[str]]:
    """The lists that a key such as `trainingOutput.trials[].metrics[]` names, the outer ones first."""
    path: list[str] = []
    for part in _SLICE.sub(".[].", key).rstrip(".").split("."):
        if part == "[]":
            yield list(path)
        elif part:
            path.append(part)
    if not key.endswith("[]"):
        yield path


def _items(resource: Any, path: Sequence[str]) -> list[Any]:
    """Copies of the resource, in which the list at the path is one item of it."""
    name, *inner = path
    value = resource.get(name) if isinstance(resource, Mapping) else None
    items = _items(value, inner) if inner else value
    if not isinstance(items, list) or value is None:
        return [resource]
    return [{**resource, name: item} for item in items]


def flattened(resource: Mapping[str, Any], labels: Mapping[str, str], separator: str, is_padded: bool) -> str:
    """A line for each value, by its whole key. `labels`: shown in place of these keys."""
    lines = [(labels.get(key, key), _on_one_line(value)) for key, value in _leaves(resource, "")]
    width = max((len(key) for key, _ in lines), default=0) if is_padded else 0
    return "\n".join(f"{key}{separator}{' ' * (width - len(key))}{value}" for key, value in lines)


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in sorted(value.items()):
            yield from _leaves(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{key}[{index}]")
    elif value is not None:
        yield key, value


def _on_one_line(value: Any) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if "\n" in text or text != text.strip() else text


def config(resource: Mapping[str, Any]) -> str:
    """`name = value`, and a section for each mapping and list inside."""
    return "\n".join(_section(list(resource.items()), ()))


def _section(items: Iterable[tuple[Any, Any]], path: tuple[str, ...]) -> list[str]:
    lines: list[str] = []
    inside: list[str] = []
    for name, value in sorted(items):
        if isinstance(value, Mapping | list):
            entries = enumerate(value) if isinstance(value, list) else value.items()
            inside += _section(list(entries), (*path, str(name)))
        else:
            lines.append(f"{name} (unset)" if value is None else f"{name} = {value}")
    heading = [f"[{'.'.join(path)}]"] if path and lines else []
    return [*heading, *lines, *inside]


def item(values: Iterable[Any], is_compact: bool) -> str:
    """An item of a list, with a line for each of its values."""
    return " - " + (" " if is_compact else "\n   ").join(str(value) for value in values if value is not None)


def named_values(resource: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {value}" for name, value in sorted(resource.items()) if value is not None]
