"""Rules of `hyperparameters` for several of its fields. Pure."""

import re
from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import Violation, quoted
from trainyard_protocol.fields import did_you_mean
from trainyard_protocol.job.hyperparameters import (
    Algorithm,
    ArgumentStyle,
    EarlyStoppingRule,
    HyperparameterSpec,
    ParameterSpec,
    ParameterType,
)

MAX_TRIALS = 10_000
MAX_PARAMETERS = 100

_FLAG = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][A-Za-z0-9_./@:-]{0,127}")
_PARENT_FIELDS = {
    ParameterType.CATEGORICAL: "parent_categorical_values",
    ParameterType.DISCRETE: "parent_discrete_values",
    ParameterType.INTEGER: "parent_int_values",
}


def violations(spec: HyperparameterSpec) -> Iterator[Violation]:
    yield from _counts(spec)
    yield from _early_stopping(spec)
    if not spec.hyperparameter_metric_tag:
        yield Violation(
            "hyperparameters.hyperparameter_metric_tag",
            "is empty. Name the metric that the program reports, or remove the field: it is then "
            "training/hptuning/metric.",
        )
    if not spec.params:
        yield Violation("hyperparameters.params", "is empty: list the parameters to vary.")
    located = list(spec.located())
    if len(located) > MAX_PARAMETERS:
        yield Violation("hyperparameters.params", f"has {len(located)} parameters; {MAX_PARAMETERS} are allowed.")
        return
    names: set[str] = set()
    for path, param, parent in located:
        yield from _name(path, param, names, spec.argument_style)
        yield from _parent(path, param, parent)
        if spec.algorithm is Algorithm.GRID_SEARCH and param.type is ParameterType.DOUBLE:
            yield Violation(
                f"{path}.type",
                f"cannot be DOUBLE with GRID_SEARCH: list the values of {quoted(param.parameter_name)} as "
                "discreteValues (type DISCRETE), or choose another algorithm.",
            )


def direction_unknown(metric: str) -> str:
    """The refusal of a metric without a goal whose name does not tell whether it is to be large."""
    return (
        f"is needed: the name {quoted(metric)} does not tell whether it is to be large or small. "
        "Name maximize or minimize."
    )


def _counts(spec: HyperparameterSpec) -> Iterator[Violation]:
    """maxParallelTrials above maxTrials is allowed: all trials then run at once."""
    if not 1 <= spec.max_trials <= MAX_TRIALS:
        yield Violation("hyperparameters.max_trials", f"must be between 1 and {MAX_TRIALS}; this is {spec.max_trials}.")
    if spec.max_parallel_trials < 1:
        yield Violation(
            "hyperparameters.max_parallel_trials", f"must be 1 or more; this is {spec.max_parallel_trials}."
        )
    if spec.max_failed_trials < 0:
        yield Violation("hyperparameters.max_failed_trials", f"must be 0 or more; this is {spec.max_failed_trials}.")


def _early_stopping(spec: HyperparameterSpec) -> Iterator[Violation]:
    stopping, path = spec.early_stopping, "hyperparameters.early_stopping"
    if stopping is None:
        return
    if "enable_trial_early_stopping" in spec.model_fields_set and not spec.enable_trial_early_stopping:
        yield Violation(path, "does not fit enableTrialEarlyStopping: false. Remove one of the two.")
    if stopping.rule is not EarlyStoppingRule.ASHA:
        for field in sorted(stopping.model_fields_set & {"min_steps", "reduction_factor"}):
            yield Violation(f"{path}.{field}", "is only for the rule ASHA.")
        return
    if stopping.min_steps < 0:
        yield Violation(f"{path}.min_steps", f"must be 1 or more, or 0 (automatic); this is {stopping.min_steps}.")
    if not 2 <= stopping.reduction_factor <= MAX_TRIALS:
        yield Violation(
            f"{path}.reduction_factor", f"must be between 2 and {MAX_TRIALS}; this is {stopping.reduction_factor}."
        )


def _name(path: str, param: ParameterSpec, names: set[str], style: ArgumentStyle) -> Iterator[Violation]:
    name = param.parameter_name
    if style is ArgumentStyle.OVERRIDES:
        if not _OVERRIDE.fullmatch(name):
            yield Violation(
                f"{path}.parameter_name",
                f"{quoted(name)} cannot be overridden (NAME=VALUE): a name has at most 128 letters, digits, _, -, ., "
                "/, @ and :, starts with a letter or _, and may have + or ++ before it.",
            )
    elif not _FLAG.fullmatch(name):
        hint = " A name with + needs argumentStyle: OVERRIDES." if name.startswith("+") else ""
        yield Violation(
            f"{path}.parameter_name",
            f"{quoted(name)} cannot be a flag of the program (--NAME): a name has at most 128 letters, digits, _, - "
            f"and ., and starts with a letter or _.{hint}",
        )
    if name in names:
        yield Violation(f"{path}.parameter_name", f"{quoted(name)} is the name of another parameter already.")
    elif style is not ArgumentStyle.OVERRIDES and name in ("job-dir", "job_dir"):
        yield Violation(f"{path}.parameter_name", f"--{name} is set by the service; take another name.")
    names.add(name)


def _parent(path: str, param: ParameterSpec, parent: ParameterSpec | None) -> Iterator[Violation]:
    given = [field for field in _PARENT_FIELDS.values() if getattr(param, field) is not None]
    if parent is None:
        for field in given:
            yield Violation(f"{path}.{field}", "is only for a parameter among childParameterSpecs.")
        return
    above = quoted(parent.parameter_name)
    wanted = _PARENT_FIELDS.get(parent.type)
    if wanted is None:
        yield Violation(path, f"cannot depend on {above}, whose type is {parent.type}: it has no single values.")
        return
    for field in given:
        if field != wanted:
            yield Violation(
                f"{path}.{field}", f"does not fit {above}, whose type is {parent.type}: use {to_camel(wanted)}."
            )
    if not param.parent_values:
        yield Violation(
            path,
            f"needs {to_camel(wanted)} with a value: with which values of {above} does "
            f"{quoted(param.parameter_name)} exist?",
        )
        return
    for number, value in enumerate(param.parent_values if wanted in given else ()):
        if not has_value(parent, value):
            hint = did_you_mean(value, parent.categorical_values) if isinstance(value, str) else ""
            text = f"{quoted(value)} is not a value of {above}." + (f" {hint}" if hint else "")
            yield Violation(f"{path}.{wanted}.values[{number}]", text)


def has_value(param: ParameterSpec, value: str | float) -> bool:
    """Whether a parameter can have this value."""
    if isinstance(value, str):
        return value in param.categorical_values
    if param.type is ParameterType.DISCRETE:
        return value in param.discrete_values
    if param.min_value is None or param.max_value is None:
        return False
    return param.min_value <= value <= param.max_value
