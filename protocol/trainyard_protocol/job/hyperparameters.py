"""`hyperparameters` of the training input: what a study varies, towards which goal, in how many trials.

Fields, types and meanings are those of the discovery document. Conditional parameters have the shape of its
`StudyConfig_ParameterSpec`. Rules for one parameter are here, those for several in `config.tuning_rules`.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, NamedTuple, Self

from pydantic import model_validator

from trainyard_protocol.errors import quoted
from trainyard_protocol.fields import Boolean, Double, Int32, Int64, Text, enum_of, validation_error
from trainyard_protocol.message import Message

MAX_VALUES = 1000
"""Values of a CATEGORICAL or DISCRETE parameter."""


Value = str | float | int
"""A parameter's value: text if CATEGORICAL, a whole number if INTEGER, else a float."""


class Goal(StrEnum):
    GOAL_TYPE_UNSPECIFIED = "GOAL_TYPE_UNSPECIFIED"
    MAXIMIZE = "MAXIMIZE"
    MINIMIZE = "MINIMIZE"


class Algorithm(StrEnum):
    ALGORITHM_UNSPECIFIED = "ALGORITHM_UNSPECIFIED"
    GRID_SEARCH = "GRID_SEARCH"
    RANDOM_SEARCH = "RANDOM_SEARCH"


class ParameterType(StrEnum):
    PARAMETER_TYPE_UNSPECIFIED = "PARAMETER_TYPE_UNSPECIFIED"
    DOUBLE = "DOUBLE"
    INTEGER = "INTEGER"
    CATEGORICAL = "CATEGORICAL"
    DISCRETE = "DISCRETE"


class ScaleType(StrEnum):
    NONE = "NONE"
    UNIT_LINEAR_SCALE = "UNIT_LINEAR_SCALE"
    UNIT_LOG_SCALE = "UNIT_LOG_SCALE"
    UNIT_REVERSE_LOG_SCALE = "UNIT_REVERSE_LOG_SCALE"


class ArgumentStyle(StrEnum):
    """The form in which programs get parameters: `--lr 0.1`, `--lr=0.1`, or `lr=0.1`, as Hydra and OmegaConf read it.
    Not of the v1 API."""

    FLAGS = "FLAGS"
    FLAGS_WITH_EQUALS = "FLAGS_WITH_EQUALS"
    OVERRIDES = "OVERRIDES"

    def words(self, name: str, value: str) -> list[str]:
        """The arguments of a parameter. A value that a parser could take for a flag is in one word with the flag."""
        if self is ArgumentStyle.OVERRIDES:
            return [f"{name}={value}"]
        if self is ArgumentStyle.FLAGS_WITH_EQUALS or value.startswith("-"):
            return [f"--{name}={value}"]
        return [f"--{name}", value]


class MeasurementSelection(StrEnum):
    """The measurement of a trial that counts: the last one, or the best. Of Vertex AI, not of the v1 API."""

    MEASUREMENT_SELECTION_TYPE_UNSPECIFIED = "MEASUREMENT_SELECTION_TYPE_UNSPECIFIED"
    LAST_MEASUREMENT = "LAST_MEASUREMENT"
    BEST_MEASUREMENT = "BEST_MEASUREMENT"


class EarlyStoppingRule(StrEnum):
    """The rule by which trials that fall behind are stopped: the median of the completed trials at the same step, or
    the asynchronous successive halving algorithm (ASHA). Not of the v1 API."""

    MEDIAN = "MEDIAN"
    ASHA = "ASHA"


class EarlyStopping(Message):
    """Early stopping of trials. Of ASHA alone: `min_steps`, the step of the first rung, 0 for one that follows from the
    trials that completed, and `reduction_factor`, the ratio of a rung's step to that of the rung before, of whose
    trials one in so many goes on. Not of the v1 API."""

    rule: Annotated[EarlyStoppingRule, enum_of(EarlyStoppingRule)] = EarlyStoppingRule.MEDIAN
    min_steps: Int64 = 0
    reduction_factor: Int32 = 3

    @property
    def words(self) -> str:
        """The rule for a person."""
        if self.rule is EarlyStoppingRule.MEDIAN:
            return "by the median of the completed trials"
        first = f"from step {self.min_steps}" if self.min_steps else "from a step that follows from the first trials"
        return f"by ASHA, one of {self.reduction_factor} goes on at each rung, {first}"


class ParentCategoricalValues(Message):
    values: tuple[Text, ...]


class ParentDiscreteValues(Message):
    values: tuple[Double, ...]


class ParentIntValues(Message):
    values: tuple[Int64, ...]


class ParameterSpec(Message):
    """A parameter. One of `child_parameter_specs` exists in a trial only where its parent has one of the values that
    the child lists in its field for the parent's type."""

    parameter_name: Text
    type: Annotated[ParameterType, enum_of(ParameterType)]
    min_value: Double | None = None
    max_value: Double | None = None
    categorical_values: tuple[Text, ...] = ()
    discrete_values: tuple[Double, ...] = ()
    scale_type: Annotated[ScaleType, enum_of(ScaleType)] = ScaleType.NONE
    parent_categorical_values: ParentCategoricalValues | None = None
    parent_discrete_values: ParentDiscreteValues | None = None
    parent_int_values: ParentIntValues | None = None
    child_parameter_specs: tuple["ParameterSpec", ...] = ()

    @property
    def parent_values(self) -> tuple[Value, ...]:
        """The values of its parent with which it exists."""
        lists = (self.parent_categorical_values, self.parent_discrete_values, self.parent_int_values)
        return tuple(value for values in lists if values for value in values.values)

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds of a DOUBLE or INTEGER parameter."""
        if self.min_value is None or self.max_value is None:
            raise ValueError(f"{self.parameter_name} has no bounds")
        return self.min_value, self.max_value

    @property
    def values(self) -> Sequence[Value]:
        """All values of a parameter that is not DOUBLE, in the order of a grid."""
        if self.type is ParameterType.INTEGER:
            low, high = self.bounds
            return range(int(low), int(high) + 1)
        return self.categorical_values or self.discrete_values

    def children_of(self, value: Value) -> list["ParameterSpec"]:
        """The conditional parameters that exist beside this value."""
        return [child for child in self.child_parameter_specs if value in child.parent_values]

    @model_validator(mode="after")
    def _space(self) -> Self:
        if self.type in (ParameterType.DOUBLE, ParameterType.INTEGER):
            self._check_range()
        elif self.type is ParameterType.CATEGORICAL:
            self._check_categories()
        elif self.type is ParameterType.DISCRETE:
            self._check_discrete()
        else:
            raise validation_error("needs a type: DOUBLE, INTEGER, CATEGORICAL or DISCRETE.")
        logarithmic = self.scale_type in (ScaleType.UNIT_LOG_SCALE, ScaleType.UNIT_REVERSE_LOG_SCALE)
        smallest = min(self.discrete_values, default=self.min_value)
        if logarithmic and (smallest is None or smallest <= 0):
            raise validation_error(f"has scaleType {self.scale_type}, which needs values above 0.")
        return self

    def _check_range(self) -> None:
        if self.min_value is None or self.max_value is None:
            raise validation_error(f"needs minValue and maxValue, since its type is {self.type}.")
        if not (math.isfinite(self.min_value) and math.isfinite(self.max_value)):
            raise validation_error("needs finite numbers as minValue and maxValue.")
        if self.min_value > self.max_value:
            raise validation_error(f"has a minValue ({self.min_value}) above its maxValue ({self.max_value}).")
        if not math.isfinite(self.max_value - self.min_value):
            raise validation_error("has a minValue and a maxValue that are too far apart.")
        whole = self.min_value.is_integer() and self.max_value.is_integer()
        if self.type is ParameterType.INTEGER and not whole:
            raise validation_error("needs whole numbers as minValue and maxValue, since its type is INTEGER.")
        if self.type is ParameterType.INTEGER and max(-self.min_value, self.max_value) > _EXACT:
            raise validation_error(f"needs whole numbers between -{_EXACT} and {_EXACT}.")

    def _check_categories(self) -> None:
        values = self.categorical_values
        if not values:
            raise validation_error("needs categoricalValues, since its type is CATEGORICAL.")
        if len(values) > MAX_VALUES:
            raise validation_error(f"may have {MAX_VALUES} categoricalValues; it has {len(values)}.")
        if len(set(values)) < len(values):
            twice = next(value for value, times in Counter(values).items() if times > 1)
            raise validation_error(f"has {quoted(twice)} twice in its categoricalValues.")

    def _check_discrete(self) -> None:
        values = self.discrete_values
        if not 1 <= len(values) <= MAX_VALUES:
            raise validation_error(f"needs 1 to {MAX_VALUES} discreteValues; it has {len(values)}.")
        if not all(map(math.isfinite, values)):
            raise validation_error("has a discreteValue that is not finite.")
        if any(a >= b for a, b in itertools.pairwise(values)):
            raise validation_error("has discreteValues that are not strictly increasing.")


_EXACT = 2**53
"""Up to here every whole number is a double."""


class HyperparameterSpec(Message):
    goal: Annotated[Goal, enum_of(Goal)] = Goal.MAXIMIZE
    params: tuple[ParameterSpec, ...]
    max_trials: Int32 = 1
    max_parallel_trials: Int32 = 1
    max_failed_trials: Int32 = 0
    hyperparameter_metric_tag: Text = "training/hptuning/metric"
    resume_previous_job_id: Text = ""
    enable_trial_early_stopping: Boolean = False
    early_stopping: EarlyStopping | None = None
    algorithm: Annotated[Algorithm, enum_of(Algorithm)] = Algorithm.ALGORITHM_UNSPECIFIED
    argument_style: Annotated[ArgumentStyle, enum_of(ArgumentStyle)] = ArgumentStyle.FLAGS
    measurement_selection_type: Annotated[MeasurementSelection, enum_of(MeasurementSelection)] = (
        MeasurementSelection.MEASUREMENT_SELECTION_TYPE_UNSPECIFIED
    )

    @property
    def minimizes(self) -> bool:
        return self.goal is Goal.MINIMIZE

    @property
    def stops_early(self) -> EarlyStopping | None:
        """The rule by which trials are stopped early, None where they are not. Without a rule it is the median."""
        return self.early_stopping or (EarlyStopping() if self.enable_trial_early_stopping else None)

    @property
    def sent_goal(self) -> Goal | None:
        """The goal that was sent; None where it is the default."""
        unsent = "goal" not in self.model_fields_set or self.goal is Goal.GOAL_TYPE_UNSPECIFIED
        return None if unsent else self.goal

    @property
    def needs_metric(self) -> bool:
        """Whether the study is nothing without its metric. A grid is tried as a whole: one whose config names no metric
        takes a metric that its trials report."""
        return self.algorithm is not Algorithm.GRID_SEARCH or "hyperparameter_metric_tag" in self.model_fields_set

    @property
    def grid_size(self) -> int | None:
        """The number of points of its space; None with a DOUBLE among the parameters."""
        return _size(self.params)

    @property
    def planned_trials(self) -> int:
        """maxTrials, or the points of a grid that has fewer."""
        size = self.grid_size if self.algorithm is Algorithm.GRID_SEARCH else None
        return self.max_trials if size is None else min(self.max_trials, size)

    def located(self) -> "Iterator[LocatedParameter]":
        """Every parameter, each before its children."""
        yield from _located("hyperparameters.params", self.params, None)


class LocatedParameter(NamedTuple):
    path: str
    """The proto path, for messages."""
    spec: ParameterSpec
    parent: ParameterSpec | None


def _located(path: str, specs: tuple[ParameterSpec, ...], parent: ParameterSpec | None) -> Iterator[LocatedParameter]:
    for number, spec in enumerate(specs):
        at = f"{path}[{number}]"
        yield LocatedParameter(at, spec, parent)
        yield from _located(f"{at}.child_parameter_specs", spec.child_parameter_specs, spec)


def _size(params: Sequence[ParameterSpec]) -> int | None:
    sizes = [_size_with_children(param) for param in params]
    return None if None in sizes else math.prod(filter(None, sizes))


def _size_with_children(param: ParameterSpec) -> int | None:
    if param.type is ParameterType.DOUBLE:
        return None
    below = dict.fromkeys((value for child in param.child_parameter_specs for value in child.parent_values), 1)
    for child in param.child_parameter_specs:
        size = _size_with_children(child)
        if size is None:
            return None
        for value in set(child.parent_values):
            below[value] *= size
    return len(param.values) - len(below) + sum(below.values())
