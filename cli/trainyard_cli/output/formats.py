"""Output formats: `-o text|json|yaml` and the parts of gcloud's `--format` that scripts use.

`value(a,b.c)` prints tab-separated values, `csv(a,b)` and `table(a,b)` a header and rows, `json` and `yaml` the whole
resource. `KEY:label=NAME` sets a column's header.
"""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import yaml

from trainyard_cli.output.safe import printable_json

_EXPRESSION = re.compile(r"(value|csv|table)(\[no-heading\])?\((.+)\)", re.S)
_KEY = re.compile(r"([A-Za-z_][\w.\[\]-]*)(?::label=([^,:()]+))?")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Output:
    """Output format. `kind`: text, json, yaml, value, csv or table; `columns`: (key, header), for the last three."""

    kind: str = "text"
    columns: tuple[tuple[str, str], ...] = ()
    heading: bool = True

    @property
    def for_people(self) -> bool:
        return self.kind == "text"


def parse(expression: str) -> Output:
    """Parse a `--format` expression. Raises a usage error that lists the known forms."""
    text = expression.strip()
    if text in ("json", "yaml", "text"):
        return Output(text)
    match = _EXPRESSION.fullmatch(text)
    columns = [_KEY.fullmatch(key.strip()) for key in match[3].split(",")] if match else []
    if match is None or not all(columns):
        raise click.UsageError(
            f"argument --format: {expression!r} is unknown; use json, yaml, value(KEY,...), "
            "csv(KEY,...) or table(KEY,...), where a KEY looks like trainingInput.workerCount."
        )
    keys = tuple((column[1], column[2] or _header(column[1])) for column in columns if column)
    return Output(match[1], keys, heading=match[2] is None)


def render(output: Output, data: Any) -> str:
    """Render one resource (a mapping) or several (a list of mappings), without a final newline.

    `text` is rendered as YAML; commands with a text form of their own do not call this for it.
    """
    match output.kind:
        case "json":
            return printable_json(json.dumps(data, indent=2, ensure_ascii=False))
        case "yaml" | "text":
            return to_yaml(data)
    rows = [
        [_shown(value_at(row, key)) for key, _ in output.columns]
        for row in (data if isinstance(data, list) else [data])
    ]
    headers = [header for _, header in output.columns]
    match output.kind:
        case "value":
            return "\n".join("\t".join(row) for row in rows)
        case "csv":
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([headers, *rows] if output.heading else rows)
            return text.getvalue().rstrip("\n")
        case _:
            return table([header.upper() for header in headers] if output.heading else [], rows)


def to_yaml(data: Any) -> str:
    """YAML as gcloud prints it: block style, sorted keys, one document for each resource of a list."""
    documents = data if isinstance(data, list) else [data]
    return yaml.safe_dump_all(
        documents,
        default_flow_style=False,
        allow_unicode=True,
        width=110,
        explicit_start=isinstance(data, list),
    ).rstrip("\n")


def count(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, two spaces apart, without trailing spaces."""
    lines = [list(headers), *map(list, rows)] if headers else [list(row) for row in rows]
    if not lines:
        return ""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


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


def _header(key: str) -> str:
    """`trainingInput.workerCount` -> `worker_count`."""
    last = re.sub(r"\[\d+\]$", "", key).rpartition(".")[2]
    return re.sub(r"(?<!^)(?=[A-Z])", "_", last).lower()
