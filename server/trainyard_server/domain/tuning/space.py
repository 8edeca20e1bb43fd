"""The search space of a study: which parameters a trial has, which values they take, and how they are written. Pure.

A conditional parameter follows its parent, where the parent has one of the values that it asks for.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from trainyard_protocol.job.hyperparameters import HyperparameterSpec, ParameterSpec, ParameterType, ScaleType, Value


class OutsideSpace(ValueError):
    """Parameters that no trial of this study has."""


def walk(spec: HyperparameterSpec, choose: Callable[[ParameterSpec], Value]) -> dict[str, Value]:
    """Choose a value for each parameter of a trial, each parent before its children."""
    chosen: dict[str, Value] = {}

    def visit(params: Sequence[ParameterSpec]) -> None:
        for param in params:
            value = chosen[param.parameter_name] = choose(param)
            visit(param.children_of(value))

    visit(spec.params)
    return chosen


def written(spec: HyperparameterSpec, values: Mapping[str, Value]) -> dict[str, str]:
    """Values as a program gets them."""
    return written_with(by_name(spec), values)


def by_name(spec: HyperparameterSpec) -> dict[str, ParameterSpec]:
    return {parameter.spec.parameter_name: parameter.spec for parameter in spec.located()}


def written_with(params: Mapping[str, ParameterSpec], values: Mapping[str, Value]) -> dict[str, str]:
    return {name: text_of(params[name], value) for name, value in values.items()}


def text_of(param: ParameterSpec, value: Value) -> str:
    """DOUBLE as Python writes it, INTEGER without a point, DISCRETE as short as in a config, CATEGORICAL as it is."""
    if param.type is ParameterType.DISCRETE:
        return repr(float(value)).removesuffix(".0")
    return value if isinstance(value, str) else repr(value)


def read(spec: HyperparameterSpec, texts: Mapping[str, str]) -> dict[str, Value]:
    """The values of a trial. Raises OutsideSpace unless they are all parameters of a point of this space."""

    def value_of(param: ParameterSpec) -> Value:
        value = parsed(param, texts.get(param.parameter_name))
        if value is None:
            raise OutsideSpace(param.parameter_name)
        return value

    values = walk(spec, value_of)
    if values.keys() != texts.keys():
        raise OutsideSpace(", ".join(sorted(texts.keys() - values.keys())))
    return values


def parsed(param: ParameterSpec, text: str | None) -> Value | None:
    """The value of a text; None for one that this parameter does not take."""
    if text is None:
        return None
    if param.type is ParameterType.CATEGORICAL:
        return text if text in param.categorical_values else None
    try:
        value = int(text) if param.type is ParameterType.INTEGER else float(text)
    except ValueError:
        return None
    if param.type is ParameterType.DISCRETE:
        return value if value in param.discrete_values else None
    low, high = param.bounds
    return value if low <= value <= high else None


def point_at(param: ParameterSpec, unit: float) -> Value:
    """The value at a place between 0 (included) and 1 of the parameter's scale. Single values are equally likely,
    whatever the scale."""
    if param.type in (ParameterType.CATEGORICAL, ParameterType.DISCRETE):
        return param.values[int(unit * len(param.values))]
    low, high = param.bounds
    if param.type is ParameterType.DOUBLE:
        return min(max(_scaled(param.scale_type, low, high, unit), low), high)
    # Each whole number is a cell of width 1 around it.
    value = _scaled(param.scale_type, low - 0.5, high + 0.5, unit)
    return min(max(round(value), int(low)), int(high))


def _scaled(scale: ScaleType, low: float, high: float, unit: float) -> float:
    if scale is ScaleType.UNIT_LOG_SCALE:
        return math.exp(math.log(low) + unit * (math.log(high) - math.log(low)))
    if scale is ScaleType.UNIT_REVERSE_LOG_SCALE:
        return low + high - _scaled(ScaleType.UNIT_LOG_SCALE, low, high, 1 - unit)
    return low + unit * (high - low)


def grid(params: Sequence[ParameterSpec]) -> Iterator[dict[str, Value]]:
    """Every point of a space without DOUBLE. The last parameter changes first, a conditional one before its parent;
    each goes through its values in the order of the config, INTEGER from its minimum."""
    if not params:
        yield {}
        return
    first, *rest = params
    for value in first.values:
        for below in grid([*first.children_of(value), *rest]):
            yield {first.parameter_name: value, **below}
