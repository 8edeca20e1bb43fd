"""Suggestions of every algorithm for random spaces and random histories."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard_protocol.job.config.tuning_rules import violations
from trainyard_protocol.job.hyperparameters import HyperparameterSpec, ScaleType
from trainyard_server.control.optuna_search import StudySuggester
from trainyard_server.domain.tuning import space
from trainyard_server.domain.tuning.suggester import PastTrial

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3)
SCALES = st.sampled_from(list(ScaleType))
PARENT_FIELDS = {
    "CATEGORICAL": "parentCategoricalValues",
    "DISCRETE": "parentDiscreteValues",
    "INTEGER": "parentIntValues",
}


@st.composite
def parameters(draw: st.DrawFn, name: str, depth: int, kinds: list[str]) -> dict[str, Any]:
    kind = draw(st.sampled_from(kinds))
    param: dict[str, Any] = {"parameterName": name, "type": kind}
    values: list[Any] = []
    if kind == "CATEGORICAL":
        values = draw(st.lists(TEXTS, min_size=1, max_size=4, unique=True))
        param["categoricalValues"] = values
    elif kind == "DISCRETE":
        positive = st.floats(1e-9, 1e9)
        values = sorted(draw(st.lists(positive, min_size=1, max_size=4, unique=True)))
        param |= {"discreteValues": values, "scaleType": draw(SCALES)}
    elif kind == "INTEGER":
        first = draw(st.integers(1, 50))
        last = draw(st.integers(first, first + 4))
        values = list(range(first, last + 1))
        param |= {"minValue": first, "maxValue": last, "scaleType": draw(SCALES)}
    else:
        low, high = sorted(draw(st.tuples(st.floats(1e-12, 1e12), st.floats(1e-12, 1e12))))
        param |= {"minValue": low, "maxValue": high, "scaleType": draw(SCALES)}
    if depth and values:
        children = []
        for number in range(draw(st.integers(0, 2))):
            child = draw(parameters(f"{name}_{number}", depth - 1, kinds))
            matching = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True))
            children.append(child | {PARENT_FIELDS[kind]: {"values": matching}})
        param["childParameterSpecs"] = children
    return param


@st.composite
def specs(draw: st.DrawFn) -> HyperparameterSpec:
    algorithm = draw(st.sampled_from(["ALGORITHM_UNSPECIFIED", "RANDOM_SEARCH", "GRID_SEARCH"]))
    kinds = ["INTEGER", "CATEGORICAL", "DISCRETE"] + (["DOUBLE"] if algorithm != "GRID_SEARCH" else [])
    params = [draw(parameters(f"p{n}", 2, kinds)) for n in range(draw(st.integers(1, 3)))]
    goal = draw(st.sampled_from(["MAXIMIZE", "MINIMIZE"]))
    spec = HyperparameterSpec.model_validate({"params": params, "goal": goal, "algorithm": algorithm})
    assert not list(violations(spec))
    return spec


METRICS = st.none() | st.floats() | st.integers(0, 3).map(float)
ELSEWHERE = PastTrial(1, {"of": "another", "space": "1"}, 0.5, ended=True)


@settings(max_examples=60)
@given(specs(), st.integers(0, 2**63 - 1), st.lists(METRICS, max_size=12), st.integers(0, 3))
def test_suggestions_are_points_of_the_space_and_the_same_when_asked_again(
    spec: HyperparameterSpec, seed: int, metrics: list[float | None], running: int
) -> None:
    """A server that goes on and one that has just started agree, while up to `running` trials beside each other end."""
    ended, past = [ELSEWHERE], [ELSEWHERE]
    size = spec.grid_size
    going_on = StudySuggester()
    for number in range(1, len(metrics) + running + 1):
        point = StudySuggester().suggest(spec, seed, past, number)
        assert point == StudySuggester().suggest(spec, seed, tuple(past), number)
        assert point == going_on.suggest(spec, seed, past, number)
        if point is None:
            assert spec.algorithm == "GRID_SEARCH"
            assert size == number - 1
            break
        assert list(space.read(spec, point)) == list(point)
        value = metrics[number - 1] if number <= len(metrics) else None
        ended.append(PastTrial(number, point, value, ended=True))
        running_now = [replace(trial, value=None, ended=False) for trial in ended[1:][-running:]] if running else []
        past = [*ended[: len(ended) - len(running_now)], *running_now]
    if spec.algorithm == "GRID_SEARCH":
        points = [tuple(trial.parameters.items()) for trial in past[1:]]
        assert len(set(points)) == len(points)
