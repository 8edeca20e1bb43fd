"""Types of the flags of a submission: what a word may be, and its value."""

import os
from collections.abc import Mapping
from typing import Any

import click

from trainyard_cli.submission.word import Word

ENGINE_OPTIONS: Mapping[str, Mapping[str, type]] = {
    "slurm": {"account": str, "qos": str, "constraint": str, "reservation": str, "exclusive": str, "setup": list},
    "kubernetes": {
        "labels": dict,
        "annotations": dict,
        "nodeSelector": dict,
        "resources": dict,
        "serviceAccount": str,
        "capabilities": list,
        "queue": str,
    },
}
"""The options of each engine, as in `trainyard_protocol.job.keys.engine_options`, which is slow to load."""


class TierChoice(click.Choice[str]):
    """A scale tier in both spellings: `standard-1` as gcloud's help has it, and `STANDARD_1` as configs have it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(str(value).replace("_", "-"), param, ctx)


class KeyValues(Word[Mapping[str, str]]):
    """gcloud's dictionary syntax `k=v,k2=v2`. With `keys` no others are allowed; `required` names a mandatory one."""

    name = "KEY=VALUE,..."

    def __init__(self, *keys: str, required: str = "") -> None:
        self._keys = keys
        self._required = required

    def read(self, text: str) -> Mapping[str, str]:
        pairs: dict[str, str] = {}
        for item in filter(None, text.split(",")):
            key, separator, value = item.partition("=")
            if not separator or not key:
                raise ValueError(f"Bad syntax for dict arg: [{item}]; write KEY=VALUE,...")
            if self._keys and key not in self._keys:
                raise ValueError(f"valid keys are [{', '.join(self._keys)}]; received: {key}")
            pairs[key] = value
        if self._required and not pairs.get(self._required):
            raise ValueError(f"[{text}] lacks {self._required}=, which is required.")
        return pairs


class Variable(Word[tuple[str, str]]):
    """`NAME=VALUE`, or `NAME` for the value that the variable has here, as of `docker run --env`."""

    name = "NAME[=VALUE]"

    def read(self, text: str) -> tuple[str, str]:
        name, separator, value = text.partition("=")
        if not name:
            raise ValueError(f"[{text}] has no name; write NAME=VALUE, or NAME for its value here.")
        if separator or name in os.environ:
            return name, value if separator else os.environ[name]
        if os.path.isfile(name):  # noqa: PTH113 - loads no pathlib
            raise ValueError(f"{name} is a file; write --env-file {name}.")
        raise ValueError(f"{name} is not set here; write {name}=VALUE.")


class EnvFile(Word[tuple[tuple[str, str], ...]]):
    """A file of variables."""

    name = "FILE"

    def read(self, text: str) -> tuple[tuple[str, str], ...]:
        from pathlib import Path

        from trainyard_cli.submission.foreign import env_file

        return env_file.read(Path(text).expanduser(), os.environ)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[click.shell_completion.CompletionItem]":
        return click.Path().shell_complete(ctx, param, incomplete)


class NamedMount(Word[tuple[str, str]]):
    """`NAME:/PATH`, or `NAME` for /mnt/NAME."""

    name = "NAME[:/PATH]"

    def read(self, text: str) -> tuple[str, str]:
        name, colon, path = text.partition(":")
        if not name or (colon and not path) or name.startswith("/"):
            raise ValueError(f"[{text}] must look like imagenet:/data: a mount's name, no directory.")
        return name, path


class SetArgument(Word[tuple[str, str]]):
    """`NAME=VALUE`; the dashes of a flag may be left out."""

    name = "NAME=VALUE"

    def read(self, text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not equals or not name.strip("-"):
            raise ValueError(f"[{text}] must look like NAME=VALUE, such as epochs=10.")
        return name, value


class DurationText(Word[str]):
    """`10m`; the value is the API's, `600s`."""

    name = "DURATION"

    def read(self, text: str) -> str:
        from trainyard_protocol.lines.time_parsing import parse_duration

        try:
            return f"{parse_duration(text).total_seconds():.0f}s"
        except ValueError as error:
            raise ValueError(f"{error}.") from error


class EngineOption(Word[tuple[str, str, str, str]]):
    """`ENGINE.OPTION=VALUE`, or `ENGINE.OPTION.KEY=VALUE` of a mapping: engine, option, key or "", and value."""

    name = "ENGINE.OPTION=VALUE"

    def read(self, text: str) -> tuple[str, str, str, str]:
        path, separator, value = text.partition("=")
        engine, _, rest = path.partition(".")
        option, _, key = rest.partition(".")
        options = ENGINE_OPTIONS.get(engine)
        if not separator or options is None:
            example = "write slurm.qos=high or kubernetes.labels.team=vision"
            raise ValueError(f"[{text}] is not an option of an engine; {example}.")
        if option not in options:
            raise ValueError(f"{engine} has no option {option!r}; allowed: {', '.join(options)}.")
        if (options[option] is dict) is not bool(key):
            form = f"{engine}.{option}=VALUE" if key else f"{engine}.{option}.KEY=VALUE"
            raise ValueError(f"[{text}] must look like {form}.")
        return engine, option, key, value


class CommaSeparated(Word[tuple[str, ...]]):
    """`a,b,c`"""

    name = "A,B,..."

    def read(self, text: str) -> tuple[str, ...]:
        return tuple(filter(None, text.split(",")))
