"""Output formats: `-o text|json|yaml` and the parts of gcloud's `--format` that scripts use.

`value(a,b.c)`, or `get(a,b.c)`, prints tab-separated values, `csv(a,b)` and `table(a,b)` a header and rows, `json` and
`yaml` the whole resource, `json(a,b)` and `yaml(a,b)` these fields of it. `none` prints nothing. `KEY:label=NAME` sets
a header; `KEY.date()`, `.basename()`, `.len()`, `.join(SEP)`, `.upper()` and `.lower()` change a value. Source:
https://cloud.google.com/sdk/gcloud/reference/topic/projections
"""

import csv
import io
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from trainyard_cli.output.text.safe import echo, printable_json

_WHOLE = ("json", "yaml")
"""The kinds that print a resource without being told its keys."""
_MAX_NAMES = 8
_COLUMNS_OF = ("value", "get", "csv", "table")
_QUOTED = """"[^"]*"|'[^']*'"""
_EXPRESSION = re.compile(
    rf"""({"|".join((*_COLUMNS_OF, *_WHOLE))})(?:\[((?:{_QUOTED}|[^\[\]()"'])*)\])?(?:\((.+)\))?""", re.S
)
_WORD = re.compile(rf"(?:{_QUOTED}|[^,])+")  # between commas
_TRANSFORM = r"(?:\.(?:date|basename|len|join|upper|lower)\([^()]*\))"
_KEY = re.compile(
    rf"([A-Za-z_][\w\[\]-]*(?:\.[\w\[\]-]+(?!\())*?)({_TRANSFORM}*)((?::(?:label|sort|align|wrap)=?[^,:()]*)*)"
)
_LIST_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\[\])?(?:\.[\w-]+(?:\[\])?)*")
_COMMA = re.compile(r",(?![^()]*\))")  # not of a transform
_CALL = re.compile(r"\.(\w+)\(([^()]*)\)")
_ATTRIBUTES = ("no-heading", "heading", "box", "no-box", "all-box", "separator", "title", "no-pad")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Column:
    """A column or field: its key, its header, and what changes its values: (name, argument) of each transform."""

    key: str
    header: str
    transforms: tuple[tuple[str, str], ...] = ()

    def value_of(self, row: Any) -> Any:
        value = value_at(row, self.key)
        for name, argument in self.transforms:
            value = _TRANSFORMS[name](value, argument)
        return value


@dataclass(frozen=True, slots=True)
class Output:
    """Output format. `kind`: text, json, yaml, none, value, csv or table; `columns`: those of the last three, or the
    fields of the others. `separator`: between the columns of value and csv, "" for the usual one. `flatten`: keys of
    lists, of which each item becomes a resource of its own."""

    kind: str = "text"
    columns: tuple["Column", ...] = ()
    heading: bool = True
    separator: str = ""
    flatten: tuple[str, ...] = ()

    @property
    def for_people(self) -> bool:
        return self.kind == "text"


def parse(expression: str) -> Output:
    """Parse a `--format` expression. Raises a usage error that lists the known forms."""
    text = expression.strip()
    if text in ("json", "yaml", "text", "none", "disable", "default"):
        return Output({"disable": "none", "default": "text"}.get(text, text))
    match = _EXPRESSION.fullmatch(text)
    columns = [_KEY.fullmatch(key.strip()) for key in _COMMA.split(match[3])] if match and match[3] else []
    attributes = [word.strip() for word in _WORD.findall(match[2] or "") if word.strip()] if match else []
    are_known = all(word.partition("=")[0] in _ATTRIBUTES for word in attributes)
    has_keys = match is not None and (columns or match[1] in _WHOLE)
    if match is None or not has_keys or not all(columns) or not are_known:
        raise click.UsageError(
            f"argument --format: {expression!r} is unknown; use json, yaml, value(KEY,...), csv(KEY,...) or "
            "table(KEY,...), where a KEY looks like trainingInput.workerCount or createTime.date(%Y-%m-%d)."
        )
    separator = next((w.partition("=")[2].strip("\"'") for w in attributes if w.startswith("separator=")), "")
    return Output(
        {"get": "value"}.get(match[1], match[1]),
        tuple(_column(column) for column in columns if column),
        heading="no-heading" not in attributes,
        separator=separator,
    )


def flatten_keys(text: str) -> tuple[str, ...]:
    """The keys of `--flatten`. Raises a usage error for what is none."""
    keys = tuple(key.strip() for key in text.split(",") if key.strip())
    for key in keys:
        if not _LIST_KEY.fullmatch(key):
            raise click.UsageError(
                f"argument --flatten: {key!r} is not a key; a key looks like trainingOutput.trials[]."
            )
    return keys


def _column(match: re.Match[str]) -> Column:
    label = next((part.partition("=")[2] for part in match[3].split(":") if part.startswith("label=")), "")
    transforms = tuple((name, argument.strip()) for name, argument in _CALL.findall(match[2]))
    return Column(match[1], label.strip("\"'") or _header(match[1]), transforms)


def render(output: Output, data: Any) -> str:
    """Render one resource (a mapping) or several (a list of mappings), without a final newline.

    `text` is rendered as YAML; commands with a text form of their own do not call this for it.
    """
    if output.kind == "none":
        return ""
    for key in output.flatten:
        data = _separated(data if isinstance(data, list) else [data], key)
    if output.columns and output.kind in _WHOLE:
        data = _projected(output, data)
    match output.kind:
        case "json":
            return printable_json(json.dumps(data, indent=2, ensure_ascii=False))
        case "yaml" | "text":
            return to_yaml(data)
    rows = [
        [_shown(column.value_of(row)) for column in output.columns]
        for row in (data if isinstance(data, list) else [data])
    ]
    headers = [column.header for column in output.columns]
    match output.kind:
        case "value":
            return "\n".join((output.separator or "\t").join(row) for row in rows)
        case "csv":
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n", delimiter=(output.separator or ",")[:1])
            writer.writerows([headers, *rows] if output.heading else rows)
            return text.getvalue().rstrip("\n")
        case _:
            return table([header.upper() for header in headers] if output.heading else [], rows)


def printed(output: Output, data: Any) -> bool:
    """Print models, or what JSON has, in the form for scripts. False if a person is to read it: nothing is printed."""
    if not output.for_people:
        echo(render(output, [_as_json(row) for row in data] if isinstance(data, list | tuple) else _as_json(data)))
    return not output.for_people


def _as_json(data: Any) -> Any:
    return data.model_dump(mode="json") if hasattr(data, "model_dump") else data


def _separated(resources: Sequence[Any], key: str) -> list[Any]:
    """A resource for each item of the lists at a key such as `trainingOutput.trials[].metrics[]`, in place of these
    lists, the outer ones first. What has no list there stays as it is."""
    paths = [key[: match.start()].replace("[]", "") for match in re.finditer(r"\[\]", key)]
    separate = list(resources)
    for path in paths if key.endswith("[]") else [*paths, key.replace("[]", "")]:
        separate = [part for resource in separate for part in _items(resource, path.split("."))]
    return separate


def _items(resource: Any, path: Sequence[str]) -> list[Any]:
    """Copies of the resource, in which the list at the path is one item of it."""
    name, *inner = path
    value = resource.get(name) if isinstance(resource, Mapping) else None
    items = _items(value, inner) if inner else value
    if not isinstance(items, list) or value is None:
        return [resource]
    return [{**resource, name: item} for item in items]


def _projected(output: Output, data: Any) -> Any:
    """The fields alone, nested as they were; one that is absent is left out."""
    if isinstance(data, list):
        return [_projected(output, item) for item in data]
    projected: dict[str, Any] = {}
    for column in output.columns:
        value = column.value_of(data)
        if value is None:
            continue
        *parents, last = re.sub(r"\[\d*\]", "", column.key).split(".")
        node = projected
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = value
    return projected


def to_yaml(data: Any) -> str:
    """YAML as gcloud prints it: block style, sorted keys, one document for each resource of a list."""
    import yaml

    documents = data if isinstance(data, list) else [data]
    text: str = yaml.safe_dump_all(
        documents, default_flow_style=False, allow_unicode=True, width=110, explicit_start=isinstance(data, list)
    )
    return text.rstrip("\n")


def count(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shortened(names: Collection[str]) -> str:
    """The first names, and the number of the others."""
    first = ", ".join(list(names)[:_MAX_NAMES])
    return first if len(names) <= _MAX_NAMES else f"{first} and {len(names) - _MAX_NAMES} more"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, two spaces apart, without trailing spaces."""
    lines = [list(headers), *map(list, rows)] if headers else [list(row) for row in rows]
    if not lines:
        return ""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def timestamp(time: datetime | None) -> str:
    """A time by this machine's clock, for a table; "" for None."""
    return time.astimezone().strftime("%Y-%m-%dT%H:%M:%S") if time is not None else ""


def value_at(data: Any, key: str) -> Any:
    """Value of a key such as `a.b[0].c` in nested mappings and lists; None if absent."""
    node = data
    for name, index in _STEP.findall(key):
        if index:
            node = node[int(index)] if isinstance(node, list) and int(index) < len(node) else None
        else:
            node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _shown(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value)
        case list() if all(isinstance(item, str) for item in value):
            return ";".join(value)
        case dict() if all(isinstance(item, str) for item in value.values()):
            return ";".join(f"{name}={item}" for name, item in value.items())
        case list() | dict():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)


def _date(value: Any, argument: str) -> Any:
    """A time by `%Y-%m-%d ...` or `format="..."`, in UTC unless `tz=LOCAL`; by default ISO 8601."""
    words = dict(_named(word) for word in _WORD.findall(argument) if word.strip())
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        return ""
    time = time.astimezone(None if words.get("tz", "UTC").upper() == "LOCAL" else UTC)
    return time.strftime(words.get("format") or "%Y-%m-%dT%H:%M:%S")


def _named(word: str) -> tuple[str, str]:
    name, is_named, value = word.strip().partition("=")
    return (name.strip(), value.strip("\"' ")) if is_named else ("format", word.strip("\"' "))


_TRANSFORMS: Mapping[str, Callable[[Any, str], Any]] = {
    "date": _date,
    "basename": lambda value, _: str(value or "").rstrip("/").rpartition("/")[2],
    "len": lambda value, _: len(value) if isinstance(value, str | Sequence | Mapping) else 0,
    "join": lambda value, by: (by.partition("=")[2] or by).strip("\"'").join(map(str, value or ())),
    "upper": lambda value, _: str(value or "").upper(),
    "lower": lambda value, _: str(value or "").lower(),
}


def _header(key: str) -> str:
    """`trainingInput.workerCount` -> `worker_count`."""
    last = re.sub(r"\[\d+\]$", "", key).rpartition(".")[2]
    return re.sub(r"(?<!^)(?=[A-Z])", "_", last).lower()
