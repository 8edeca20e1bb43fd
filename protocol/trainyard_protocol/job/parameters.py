"""Parameters of a job: names and values, read from the arguments of its program."""

import math
import re
from collections.abc import Mapping, Sequence

MAX_PARAMETERS = 200
"""Limit of parameters that are read from the arguments of a job."""

MAX_PARAMETER_NAME = 100
MAX_PARAMETER_VALUE = 500
"""Limits in characters. A longer name is left out, a longer value is cut."""

_OPTION = re.compile(r"--?([A-Za-z_][\w.-]*)(?:=(.*))?", re.S)
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w./@-]*)=(.*)", re.S)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def parameters_of(args: Sequence[str]) -> Mapping[str, str]:
    """The parameters that arguments set: `--lr 0.1`, `--lr=0.1`, `-lr 0.1`, `key=value` of Hydra, and flags, which are
    `true`. Dashes in the names of options are underscores, so that `--learning-rate` and `--learning_rate` are one. An
    option with several values has them side by side; of an option that is repeated the last counts."""
    parameters: dict[str, str] = {}
    name, values = "", list[str]()

    def end_option() -> None:
        if name:
            _add(parameters, name, " ".join(values) if values else "true")

    for position, word in enumerate(args):
        if word == "--":
            end_option()
            for rest in args[position + 1 :]:
                if override := _OVERRIDE.fullmatch(rest):
                    _add(parameters, override[1], override[2])
            return parameters
        option = None if _NUMBER.fullmatch(word) else _OPTION.fullmatch(word)
        if option is not None:
            end_option()
            name, values = option[1].replace("-", "_"), []
            if option[2] is not None:
                _add(parameters, name, option[2])
                name = ""
        elif (override := _OVERRIDE.fullmatch(word)) and not (name and not values):
            _add(parameters, override[1], override[2])
        elif name:
            values.append(word)
    end_option()
    return parameters


def number_of(value: str) -> float | None:
    """The number that a value is; None for other text, and for what is not finite."""
    text = value.strip()
    if not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def parameter_name(name: str) -> str:
    """The name as `parameters_of` has it: `--learning-rate`, `learning-rate` and `learning_rate` are one, `+lr` is
    `lr`."""
    return name.lstrip("-+").replace("-", "_") if name.lstrip("-+") else name


def _add(parameters: dict[str, str], name: str, value: str) -> None:
    if len(name) <= MAX_PARAMETER_NAME and (name in parameters or len(parameters) < MAX_PARAMETERS):
        parameters[name] = value[:MAX_PARAMETER_VALUE]
