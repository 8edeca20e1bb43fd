"""Space of parameters that jobs were given, inferred from their values, as if they were trials of a study. Pure."""

import math
from collections.abc import Mapping, Sequence

from trainyard_protocol.job.hyperparameters import HyperparameterSpec, ParameterSpec, ParameterType, ScaleType
from trainyard_protocol.job.parameters import number_of

NOT_SET = "not set"
"""Value of a parameter that other jobs have, all with the same value: a flag, mostly."""

MOST = 30
"""Limit of parameters: a chart has an axis for each."""

_DECADES = 30.0  # the ratio of ends from which on a scale is logarithmic
_EXACT = 2**53


def inferred_space(jobs: Sequence[Mapping[str, str]]) -> tuple[HyperparameterSpec, list[dict[str, str]]]:
    """The parameters in which jobs differ, those that most of them have first; and the parameters of each job,
    completed with NOT_SET."""
    completed = [dict(job) for job in jobs]
    names = list(dict.fromkeys(name for job in jobs for name in job))
    counts = {name: sum(name in job for job in jobs) for name in names}
    params: list[ParameterSpec] = []
    for name in sorted(names, key=lambda name: -counts[name]):
        values = dict.fromkeys(job[name] for job in jobs if name in job)
        if len(values) == 1 and counts[name] < len(jobs):
            for job in completed:
                job.setdefault(name, NOT_SET)
            values = dict.fromkeys(job[name] for job in completed)
        if len(values) > 1 and len(params) < MOST:
            params.append(_parameter(name, list(values)))
    return HyperparameterSpec(params=tuple(params)), completed


def _parameter(name: str, values: Sequence[str]) -> ParameterSpec:
    numbers = [number for value in values if (number := number_of(value)) is not None]
    if len(numbers) < len(values) or not math.isfinite(max(numbers) - min(numbers)):
        ordered = tuple(sorted(values))
        return ParameterSpec(parameter_name=name, type=ParameterType.CATEGORICAL, categorical_values=ordered)
    low, high = min(numbers), max(numbers)
    is_whole = all(value.strip().lstrip("+-").isdecimal() for value in values) and max(-low, high) <= _EXACT
    return ParameterSpec(
        parameter_name=name,
        type=ParameterType.INTEGER if is_whole else ParameterType.DOUBLE,
        min_value=low,
        max_value=high,
        scale_type=ScaleType.UNIT_LOG_SCALE if 0 < low * _DECADES <= high else ScaleType.NONE,
    )
