"""`--sweep NAME=VALUE,...`: a study of GRID_SEARCH without a config, and how its program reads arguments."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard_cli.submission.word import Word

MAX_AT_ONCE = 16
"""Trials of a sweep at a time, where nothing else is asked for."""

STYLES = ("flags", "flags-with-equals", "overrides")
"""The values of --sweep-style, those of `ArgumentStyle`."""

_STYLES_BY_SOURCE = (
    ("OVERRIDES", re.compile(r"hydra\.main\(|from hydra import .*\bmain\b|\.hydra_main\(|OmegaConf\.from_cli\(")),
    ("FLAGS_WITH_EQUALS", re.compile(r"""open\(['"]configurator\.py""")),
)
"""What a program says that does not read `--name value`: Hydra and OmegaConf, and nanoGPT's configurator."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class SweptFlag:
    """A flag of the program and the values that it is to have."""

    name: str
    values: tuple[str, ...]

    @property
    def parameter(self) -> dict[str, Any]:
        """The parameter of the study: DISCRETE if all values are numbers, from the lowest; else CATEGORICAL."""
        if all(map(_NUMBER.fullmatch, self.values)):
            numbers = sorted(map(float, self.values))
            return {"parameterName": self.name, "type": "DISCRETE", "discreteValues": numbers}
        return {"parameterName": self.name, "type": "CATEGORICAL", "categoricalValues": list(self.values)}


class Sweep(Word[SweptFlag]):
    """Parameter type of --sweep."""

    name = "NAME=VALUE,..."

    def read(self, text: str) -> SweptFlag:
        name, equals, values = text.partition("=")
        name = name.removeprefix("--")
        if not (name and equals):
            raise ValueError(f"{text!r} must look like NAME=VALUE,VALUE,...: a parameter of your program.")
        try:
            return swept(name, [part.strip() for part in values.split(",")])
        except ValueError as error:
            raise ValueError(f"{text!r} {error}.") from error


def swept(name: str, values: Sequence[str]) -> SweptFlag:
    """A flag with its values. Raises ValueError, with the end of a sentence."""
    if not values or "" in values:
        raise ValueError("has an empty value")
    keys = [float(value) if _NUMBER.fullmatch(value) else value for value in values]
    twice = next((value for value, key in zip(values, keys, strict=True) if keys.count(key) > 1), "")
    if twice:
        raise ValueError(f"has {twice} twice")
    if any(isinstance(key, float) and math.isinf(key) for key in keys):
        raise ValueError("has a number that is too large")
    return SweptFlag(name, tuple(values))


def style_of(source: str) -> str:
    """The argumentStyle that a program needs, by its source; "" where it does not tell."""
    return next((style for style, pattern in _STYLES_BY_SOURCE if pattern.search(source)), "")


def fields(swept: Sequence[SweptFlag], given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `hyperparameters` of a sweep. `given`: those of the config, of which goal, metric and the trials at
    a time stay. Raises InvalidArgument."""
    from trainyard_protocol.errors import InvalidArgument
    from trainyard_protocol.job.config.tuning_rules import MAX_TRIALS

    names = Counter(flag.name for flag in swept)
    name, count = names.most_common(1)[0]
    if count > 1:
        raise InvalidArgument(f"--sweep: {name} is given {count} times. List all its values in one.")
    trials = math.prod(len(flag.values) for flag in swept)
    if trials > MAX_TRIALS:
        raise InvalidArgument(f"--sweep: makes {trials} trials; a study has at most {MAX_TRIALS}.")
    has_limit = "maxParallelTrials" in given or "max_parallel_trials" in given
    return {
        "params": [flag.parameter for flag in swept],
        "algorithm": "GRID_SEARCH",
        "maxTrials": trials,
        **({"argumentStyle": "OVERRIDES"} if any(name.startswith("+") for name in names) else {}),
        **({} if has_limit else {"maxParallelTrials": min(trials, MAX_AT_ONCE)}),
    }
