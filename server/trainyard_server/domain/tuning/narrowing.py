"""Narrowed ranges: the search space around some trials of a study, never outside the old one. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainyard_protocol.job.hyperparameters import HyperparameterSpec, ParameterSpec, ParameterType, ScaleType, Value
from trainyard_server.domain.tuning import space

MARGIN = 0.05
"""A part of the old range, on the parameter's scale: what a DOUBLE keeps on each side of the trials' values."""

_PARENT_FIELDS = ("parentCategoricalValues", "parentDiscreteValues", "parentIntValues")


def narrowed(spec: HyperparameterSpec, sent: Mapping[str, Any], trials: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """`sent`, the hyperparameters of a config, with the ranges and lists that the parameters of these trials span. A
    parameter that none of them has stays as it is, unless no remaining value of its parent has it."""
    return {**sent, "params": _each(spec.params, sent["params"], trials)}


def _each(
    params: Sequence[ParameterSpec], sent: Sequence[Mapping[str, Any]], trials: Sequence[Mapping[str, str]]
) -> list[dict[str, Any]]:
    return [_one(param, given, trials) for param, given in zip(params, sent, strict=True)]


def _one(param: ParameterSpec, sent: Mapping[str, Any], trials: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    parsed = [space.parsed(param, trial.get(param.parameter_name)) for trial in trials]
    values = {value for value in parsed if value is not None}
    result = {**sent, **(_space(param, values) if values else {})}
    if not param.child_parameter_specs:
        return result
    narrower = ParameterSpec.model_validate({**result, "childParameterSpecs": []})
    children = [
        _below(narrower, child, given)
        for child, given in zip(
            param.child_parameter_specs,
            _each(param.child_parameter_specs, sent["childParameterSpecs"], trials),
            strict=True,
        )
    ]
    result["childParameterSpecs"] = [child for child in children if child is not None]
    if not result["childParameterSpecs"]:
        del result["childParameterSpecs"]
    return result


def _below(parent: ParameterSpec, child: ParameterSpec, sent: dict[str, Any]) -> dict[str, Any] | None:
    """A conditional parameter with those of its parent's values that remain; None without any."""
    remaining = [value for value in child.parent_values if value in parent.values]
    if not remaining:
        return None
    return {key: {"values": remaining} if key in _PARENT_FIELDS else value for key, value in sent.items()}


def _space(param: ParameterSpec, values: set[Value]) -> dict[str, Any]:
    """The fields that say which values the parameter takes."""
    if param.type is ParameterType.CATEGORICAL:
        return {"categoricalValues": [value for value in param.categorical_values if value in values]}
    if param.type is ParameterType.DISCRETE:
        return {"discreteValues": [value for value in param.discrete_values if value in values]}
    numbers = [float(value) for value in values]
    low, high = min(numbers), max(numbers)
    if param.type is ParameterType.INTEGER:
        return {"minValue": int(low), "maxValue": int(high)}
    low, high = _widened(param, low, high)
    return {"minValue": low, "maxValue": high}


def _widened(param: ParameterSpec, low: float, high: float) -> tuple[float, float]:
    """A range with the margin on both sides, in six digits, within the parameter's own."""
    first, last = param.bounds
    lowest, highest = low, high
    if param.scale_type is ScaleType.UNIT_LOG_SCALE:
        factor = (last / first) ** MARGIN
        low, high = low / factor, high * factor
    elif param.scale_type is ScaleType.UNIT_REVERSE_LOG_SCALE:
        factor = (last / first) ** MARGIN
        low, high = (first + last - (first + last - low) * factor, first + last - (first + last - high) / factor)
    else:
        margin = (last - first) * MARGIN
        low, high = low - margin, high + margin
    return max(first, min(float(f"{low:.6g}"), lowest)), min(last, max(float(f"{high:.6g}"), highest))
