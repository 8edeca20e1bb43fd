"""The plan of a study, before it runs. Pure."""

from collections.abc import Sequence
from typing import Any

from trainyard_cli.output.jobs import formats
from trainyard_cli.output.text.safe import without_control
from trainyard_protocol.job.hyperparameters import (
    Algorithm,
    ArgumentStyle,
    HyperparameterSpec,
    ParameterSpec,
    ParameterType,
    ScaleType,
)

_ALGORITHMS = {
    Algorithm.ALGORITHM_UNSPECIFIED: "by the default algorithm (Bayesian)",
    Algorithm.GRID_SEARCH: "by GRID_SEARCH",
    Algorithm.RANDOM_SEARCH: "by RANDOM_SEARCH",
}
_SCALES = {
    ScaleType.UNIT_LINEAR_SCALE: "linear",
    ScaleType.UNIT_LOG_SCALE: "logarithmic",
    ScaleType.UNIT_REVERSE_LOG_SCALE: "reverse logarithmic",
}
_MOST_VALUES = 8


def at_once(spec: HyperparameterSpec) -> int:
    return min(spec.max_parallel_trials, spec.planned_trials)


def headline(spec: HyperparameterSpec) -> str:
    """`A study by GRID_SEARCH: 4 trials, 2 at a time, over lr and batch_size, for the largest accuracy.` A grid without
    a metric is ranked by what its trials report. Arguments that are not `--lr VALUE` are shown."""
    names = [without_control(parameter.spec.parameter_name) for parameter in spec.located()]
    over = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
    extreme = "smallest" if spec.minimizes else "largest"
    aim = f"for the {extreme} {without_control(spec.hyperparameter_metric_tag)}"
    if not spec.needs_metric:
        aim = "ranked by the metric that they report (--metric names it)"
    planned = formats.count(spec.planned_trials, "trial")
    how = f"{_ALGORITHMS[spec.algorithm]}: {planned}, {at_once(spec)} at a time"
    return f"A study {how}, over {over}, {aim}.{_style(spec)}"


def _style(spec: HyperparameterSpec) -> str:
    if spec.argument_style is ArgumentStyle.FLAGS or not spec.params:
        return ""
    words = " ".join(spec.argument_style.words(spec.params[0].parameter_name, "VALUE"))
    return f" Trials get {without_control(words)} (--sweep-style)."


def lines(spec: HyperparameterSpec) -> list[str]:
    """The study for `jobs validate`: headline, parameters, and the size of the grid."""
    rows = list(_rows(spec.params, ""))
    size = spec.grid_size
    return [
        headline(spec),
        *([f"Trials that fall behind are stopped {spec.stops_early.words}."] if spec.stops_early else []),
        *([f"The grid has {formats.count(size, 'point')}{_tried(spec, size)}."] if size is not None else []),
        "",
        formats.table(["PARAMETER", "TYPE", "VALUES", "SCALE", "ONLY WITH"], rows),
    ]


def _tried(spec: HyperparameterSpec, size: int) -> str:
    if spec.algorithm is not Algorithm.GRID_SEARCH or size <= spec.max_trials:
        return ""
    return f", of which the first {spec.max_trials} are tried (maxTrials)"


def data(spec: HyperparameterSpec) -> dict[str, Any]:
    """The plan for programs."""
    return {
        "algorithm": str(spec.algorithm),
        "trials": spec.planned_trials,
        "parallelTrials": at_once(spec),
        "parameters": [parameter.spec.parameter_name for parameter in spec.located()],
        "gridSize": spec.grid_size,
        "earlyStopping": str(spec.stops_early.rule) if spec.stops_early else None,
    }


def _rows(params: Sequence[ParameterSpec], indent: str, parent: str = "") -> list[list[str]]:
    rows = []
    for param in params:
        matching = ", ".join(map(_short, param.parent_values))
        rows.append(
            [
                f"{indent}{param.parameter_name}",
                str(param.type),
                _values(param),
                _SCALES.get(param.scale_type, "-"),
                f"{parent}={matching}" if parent else "-",
            ]
        )
        rows += _rows(param.child_parameter_specs, f"{indent}  ", param.parameter_name)
    return [[without_control(cell) for cell in row] for row in rows]


def _values(param: ParameterSpec) -> str:
    if param.type in (ParameterType.DOUBLE, ParameterType.INTEGER):
        low, high = map(_short, param.bounds)
        return f"{low} to {high}"
    shown = ", ".join(map(_short, param.values[:_MOST_VALUES]))
    more = len(param.values) - _MOST_VALUES
    return f"{shown} and {more} more" if more > 0 else shown


def _short(value: str | float) -> str:
    return value if isinstance(value, str) else repr(float(value)).removesuffix(".0")
