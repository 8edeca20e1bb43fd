"""Importance of parameters."""

import random

from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_server.domain.tuning.importance import importances

SPEC = HyperparameterSpec.model_validate(
    {
        "params": [
            {"parameterName": "lr", "type": "DOUBLE", "minValue": 0.0, "maxValue": 1.0},
            {"parameterName": "layers", "type": "INTEGER", "minValue": 1, "maxValue": 3},
            {
                "parameterName": "optimizer",
                "type": "CATEGORICAL",
                "categoricalValues": ["sgd", "adam"],
                "childParameterSpecs": [
                    {
                        "parameterName": "momentum",
                        "type": "DISCRETE",
                        "discreteValues": [0.5, 0.9],
                        "parentCategoricalValues": {"values": ["sgd"]},
                    }
                ],
            },
        ]
    }
)


def study(trials: int, weight: float) -> list[tuple[dict[str, str], float]]:
    """Trials whose metric follows from lr; the momentum counts among those that have it."""
    chance = random.Random(3)
    found = []
    for _ in range(trials):
        lr = chance.random()
        parameters = {"lr": repr(lr), "layers": str(chance.randint(1, 3)), "optimizer": chance.choice(["sgd", "adam"])}
        value = weight * lr**2 + chance.random() * 0.05
        if parameters["optimizer"] == "sgd":
            parameters["momentum"] = chance.choice(["0.5", "0.9"])
            value += float(parameters["momentum"])
        found.append((parameters, value))
    return found


def test_importance_is_the_share_that_a_parameter_explains() -> None:
    found = importances(SPEC, study(120, weight=10.0))
    assert found["lr"] > 0.9
    assert found["layers"] < 0.1
    found = importances(SPEC, study(120, weight=0.0))
    assert found["lr"] < 0.1
    assert found["momentum"] > 0.9
    assert found == importances(SPEC, study(120, weight=0.0))


def test_nothing_is_said_of_too_few_trials_or_of_one_value_for_all() -> None:
    assert importances(SPEC, study(5, weight=1.0)) == {}
    assert importances(SPEC, []) == {}
    equal = [({"layers": "2", "lr": str(n / 9)}, 0.5) for n in range(9)]
    assert importances(SPEC, equal) == {"lr": 0.0}
