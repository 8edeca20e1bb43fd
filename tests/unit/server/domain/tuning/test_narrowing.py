"""Search spaces around some trials."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.job.hyperparameters import HyperparameterSpec, ParameterSpec
from trainyard_server.domain.tuning import space
from trainyard_server.domain.tuning.narrowing import narrowed


def narrow(param: dict[str, Any], *trials: dict[str, str]) -> dict[str, Any]:
    sent = {"goal": "MAXIMIZE", "params": [param]}
    result = narrowed(HyperparameterSpec.model_validate(sent), sent, trials)
    assert result["goal"] == "MAXIMIZE"
    HyperparameterSpec.model_validate(result)
    (found,) = result["params"]
    return dict(found)


def double(scale: str) -> dict[str, Any]:
    return {"parameterName": "lr", "type": "DOUBLE", "minValue": 0.0001, "maxValue": 1.0, "scaleType": scale}


CASES = {
    "linear, with a margin": (double("NONE"), ["0.4", "0.2"], (0.150005, 0.449995)),
    "log": (double("UNIT_LOG_SCALE"), ["0.01", "0.1"], (0.00630957, 0.158489)),
    "reverse log": (double("UNIT_REVERSE_LOG_SCALE"), ["0.9", "0.99"], (0.841452, 0.993727)),
    "one trial": (double("UNIT_LOG_SCALE"), ["0.01"], (0.00630957, 0.0158489)),
    "at the ends": (double("NONE"), ["0.0001", "0.99"], (0.0001, 1.0)),
    "trials elsewhere": (double("NONE"), ["7.0"], (0.0001, 1.0)),
    "integer": ({"parameterName": "lr", "type": "INTEGER", "minValue": 1, "maxValue": 9}, ["3", "5"], (3, 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_range_spans_the_trials(name: str) -> None:
    param, texts, expected = CASES[name]
    found = narrow(param, *({"lr": text} for text in texts))
    assert (found["minValue"], found["maxValue"]) == expected


def test_lists_keep_the_values_of_the_trials_in_their_order() -> None:
    sizes = {"parameterName": "n", "type": "DISCRETE", "discreteValues": [8, 16, 32, 64]}
    assert narrow(sizes, {"n": "64"}, {"n": "16"}, {"n": "64"})["discreteValues"] == [16, 64]


def conditional(*on: str) -> dict[str, Any]:
    child = {"parameterName": "momentum", "type": "DOUBLE", "minValue": 0.0, "maxValue": 1.0}
    return {
        "parameterName": "optimizer",
        "type": "CATEGORICAL",
        "categoricalValues": ["sgd", "nesterov", "adam"],
        "childParameterSpecs": [child | {"parentCategoricalValues": {"values": list(on)}}],
    }


def test_conditional_parameter_follows_what_remains_of_its_parent() -> None:
    trials = ({"optimizer": "sgd", "momentum": "0.5"}, {"optimizer": "adam"})
    found = narrow(conditional("sgd", "nesterov"), *trials)
    assert found["categoricalValues"] == ["sgd", "adam"]
    (child,) = found["childParameterSpecs"]
    assert child["parentCategoricalValues"] == {"values": ["sgd"]}
    assert (child["minValue"], child["maxValue"]) == (0.45, 0.55)
    assert "childParameterSpecs" not in narrow(conditional("sgd"), {"optimizer": "adam"})


@given(
    st.sampled_from(["NONE", "UNIT_LINEAR_SCALE", "UNIT_LOG_SCALE", "UNIT_REVERSE_LOG_SCALE"]),
    st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)).map(sorted),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=5),
)
def test_range_has_every_trial_and_is_never_wider(scale: str, bounds: list[float], units: list[float]) -> None:
    param = double(scale) | {"minValue": bounds[0], "maxValue": bounds[1]}
    values = [float(space.point_at(ParameterSpec.model_validate(param), unit)) for unit in units]
    found = narrow(param, *({"lr": repr(value)} for value in values))
    assert bounds[0] <= found["minValue"] <= min(values)
    assert max(values) <= found["maxValue"] <= bounds[1]
