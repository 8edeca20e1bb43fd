"""Sweep around a job: a study over the numbers among its arguments. Pure."""

import re
from collections.abc import Sequence
from typing import Any

from trainyard_protocol.job.parameters import number_of, parameter_name, parameters_of
from trainyard_protocol.lines.progress import lower_is_better

_TRIALS, _AT_A_TIME = 20, 2
_MOST = 6
_FACTOR = 3
_NO_CHOICE = re.compile(r"(.*_)?(seed|epochs?|steps?|gpus?|workers|port|rank|world_size|version|index|id)")
"""Parameters that say how long or where a program trains, or which run it is."""


def around(args: Sequence[str], metric: str) -> dict[str, Any] | None:
    """The `hyperparameters` of a study with ranges around the positive numbers of these arguments: a third to three
    times of a fraction, on a logarithmic scale, half to twice of a whole number. None without such a number."""
    flags = _flags(args)
    values = flags or parameters_of([word for word in args if not word.startswith("-")])  # lr=0.1, as Hydra reads it
    params = [
        _range(name, value)
        for name, value in values.items()
        if (number_of(value) or 0) > 0 and not _NO_CHOICE.fullmatch(parameter_name(name))
    ]
    if not params:
        return None
    return {
        "goal": "MINIMIZE" if lower_is_better(metric) else "MAXIMIZE",
        "hyperparameterMetricTag": metric,
        "maxTrials": _TRIALS,
        "maxParallelTrials": _AT_A_TIME,
        **({} if flags else {"argumentStyle": "OVERRIDES"}),
        "params": params[:_MOST],
    }


def _flags(args: Sequence[str]) -> dict[str, str]:
    """The options by their names as they are written."""
    values = parameters_of(args)
    words = (word.lstrip("-").partition("=")[0] for word in args if word.startswith("--") and len(word) > 2)
    return {name: values.get(parameter_name(name), "") for name in words}


def _range(name: str, value: str) -> dict[str, Any]:
    if re.fullmatch(r"\d+", value):
        whole = int(value)
        scale = "UNIT_LINEAR_SCALE"
        return {"parameterName": name, "type": "INTEGER", **_bounds(max(1, whole // 2), 2 * whole), "scaleType": scale}
    number = float(value)
    low, high = (float(f"{bound:.3g}") for bound in (number / _FACTOR, number * _FACTOR))
    return {"parameterName": name, "type": "DOUBLE", **_bounds(low, high), "scaleType": "UNIT_LOG_SCALE"}


def _bounds(low: float, high: float) -> dict[str, float]:
    return {"minValue": low, "maxValue": high}
