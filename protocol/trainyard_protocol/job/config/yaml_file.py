"""The YAML files of an operator: machine types, quotas, runtimes."""

from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.config.encoding import decode

SITE: Any = yaml.SafeLoader
SHIPPED: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loaders of a site's files and of our own. libyaml, where PyYAML has it, is seven times faster; it has no limit of
depth, and says less of what is wrong."""


class SiteEntry(BaseModel):
    """An entry of such a file, or the whole of it: keys in camelCase, and no others."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True)


def read_yaml_file(path: Path, loader: Any = SITE) -> tuple[str, Any]:
    """The text of the file and its value, {} for an empty one. Raises InvalidArgument with file and line."""
    try:
        text = decode(path.read_bytes(), str(path), str(path))
        return text, yaml.load(text, loader) or {}  # noqa: S506 - a safe one
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = "" if mark is None else f":{mark.line + 1}"
        problem = getattr(error, "problem", None) or error
        raise InvalidArgument(f"{path}{position}: is not YAML: {problem}.") from error
    except RecursionError as error:
        raise InvalidArgument(f"{path}: is nested too deeply.") from error
    except (ValueError, OverflowError, LookupError, AttributeError) as error:
        # "\U00110000", 0x_, 2026-13-45, !!int "": PyYAML lets Python's own errors through.
        raise InvalidArgument(f"{path}: has a number, a time or an escape that is none: {error}.") from error


def entry_problem(path: Path, text: str, model: type[BaseModel], error: ValidationError) -> InvalidArgument:
    """The first entry of a file that is not as its model says: with file, line and, for an unknown key, those that are
    allowed there."""
    first = error.errors(include_url=False)[0]
    steps = first["loc"]
    message = first["msg"].removeprefix("Value error, ").removesuffix(".")
    if steps[-1:] == ("[key]",):
        steps, message = steps[:-1], 'a version or name that YAML reads as a number needs quotes: "2.10"'
        if first["type"] == "literal_error":
            message = f"there is no such entry; allowed: {first['ctx']['expected']}"
    if first["type"] == "extra_forbidden":
        message = f"there is no such entry; allowed: {', '.join(_keys(model, steps[:-1]))}"
    entry = ".".join(map(str, steps)) or "the file"
    return InvalidArgument(f"{path}:{line_of(text, steps)}: {entry}: {message}.")


def line_of(text: str, steps: Sequence[int | str]) -> int:
    """The line of the entry, from 1; for a missing entry, of its parent."""
    node, line = yaml.compose(text, yaml.SafeLoader), 1
    for step in steps:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
            continue
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        pair = next(((key, value) for key, value in pairs if key.value == str(step)), None)
        if pair is None:
            break
        line, node = pair[0].start_mark.line + 1, pair[1]
    return line


def _keys(kind: Any, steps: Sequence[int | str]) -> list[str]:
    """The keys of the entry that these steps lead to, in a model, or in mappings and lists of models."""
    inner = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return _keys(inner[0], steps)
    if inner:
        return _keys(inner[-1], steps[1:])
    fields = {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
    return _keys(fields[str(steps[0])], steps[1:]) if steps else list(fields)
