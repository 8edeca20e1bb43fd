"""Importance of parameters: how much of the differences between trials each parameter explains by itself. Pure.

Trials are grouped by the parameter's value, numbers with many values into ranges with equally many trials. The
importance is the share of the metric's variance that lies between the groups, less what chance would put there (epsilon
squared): 0 if the parameter tells nothing, 1 if it tells everything. What only a combination of parameters explains
counts for none of them. Metrics far outside are moved to Tukey's fences, so that one diverged trial does not decide.
"""

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby

from trainyard_protocol.job.hyperparameters import HyperparameterSpec, ParameterSpec, ParameterType, Value
from trainyard_server.domain.tuning import space

FEWEST_TRIALS = 6
"""Fewer trials say nothing about importance."""

MOST_TRIALS = 2000
"""Most trials that are used: of more only every second, third, ..."""

_MOST_RANGES = 8


def importances(spec: HyperparameterSpec, trials: Sequence[tuple[Mapping[str, str], float]]) -> dict[str, float]:
    """The importance of each parameter for which there are enough trials, from (parameters, metric) of the trials. A
    conditional parameter is judged by the trials that have it."""
    finite = [trial for trial in trials if math.isfinite(trial[1])]
    used = finite[:: -(-len(finite) // MOST_TRIALS) or 1]
    by_name: dict[str, float] = {}
    for name, param in space.by_name(spec).items():
        pairs = [
            (value, metric)
            for parameters, metric in used
            if (value := space.parsed(param, parameters.get(name))) is not None
        ]
        groups = _groups(param, [value for value, _ in pairs])
        importance = _between(groups, _scaled(fenced([metric for _, metric in pairs])))
        if importance is not None:
            by_name[name] = importance
    return by_name


def ranks(values: Sequence[float]) -> list[float]:
    """The ranks from 0; equal values share the middle of theirs."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    result = [0.0] * len(values)
    for _, same in groupby(enumerate(order), key=lambda place: values[place[1]]):
        places = list(same)
        middle = (places[0][0] + places[-1][0]) / 2
        for _, index in places:
            result[index] = middle
    return result


def fenced(values: Sequence[float]) -> Sequence[float]:
    """Values with those beyond 1.5 times the interquartile range from the quartiles moved there."""
    if len(values) < FEWEST_TRIALS:
        return values
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    reach = 1.5 * (high - low)
    return [min(max(value, low - reach), high + reach) for value in values] if reach > 0 else values


def _scaled(values: Sequence[float]) -> list[float]:
    """Values between -1 and 1, whose squares are never too large."""
    largest = max(map(abs, values), default=0.0)
    return [value / largest for value in values] if largest else list(values)


def _groups(param: ParameterSpec, values: Sequence[Value]) -> list[Hashable]:
    """The group of each value."""
    most = min(_MOST_RANGES, math.isqrt(len(values)))
    few = min(_MOST_RANGES, max(most, len(values) // 2))  # each value has two trials, on average
    if param.type in (ParameterType.CATEGORICAL, ParameterType.DISCRETE) or len(set(values)) <= few:
        return list(values)
    places = ranks([float(value) for value in values])
    return [int(place * most / len(values)) for place in places]


def _between(groups: Sequence[Hashable], values: Sequence[float]) -> float | None:
    """Epsilon squared; None where there are too few values, one group, or a group for each value."""
    members: dict[Hashable, list[float]] = {}
    for group, value in zip(groups, values, strict=True):
        members.setdefault(group, []).append(value)
    count, kinds = len(values), len(members)
    if count < FEWEST_TRIALS or not 1 < kinds < count:
        return None
    total = _squares(values)
    within = sum(_squares(in_group) for in_group in members.values())
    if total == 0:
        return 0.0
    by_chance = (kinds - 1) * within / (count - kinds)
    return max(0.0, (total - within - by_chance) / total)


def _squares(values: Iterable[float]) -> float:
    """The sum of the squared distances from the mean."""
    all_values = list(values)
    mean = math.fsum(all_values) / len(all_values)
    return math.fsum((value - mean) ** 2 for value in all_values)
