"""The search space of a study: sizes, order of the grid, values as text."""

from typing import Any

from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_server.domain.tuning import space
from trainyard_server.domain.tuning.search import GridSearch
from trainyard_server.domain.tuning.suggester import PastTrial


def spec(*params: dict[str, Any]) -> HyperparameterSpec:
    return HyperparameterSpec.model_validate({"params": params})


SIZES = {"parameterName": "batch-size", "type": "DISCRETE", "discreteValues": [0.5, 32]}
OPTIMIZER = {
    "parameterName": "optimizer",
    "type": "CATEGORICAL",
    "categoricalValues": ["sgd", "adam"],
    "childParameterSpecs": [
        {
            "parameterName": "momentum",
            "type": "INTEGER",
            "minValue": 1,
            "maxValue": 2,
            "parentCategoricalValues": {"values": ["sgd"]},
        }
    ],
}


def test_grid_has_every_point_once_with_the_last_parameter_first() -> None:
    both = spec(OPTIMIZER, SIZES)
    points = [space.written(both, point) for point in space.grid(both.params)]
    assert points == [
        {"optimizer": "sgd", "momentum": "1", "batch-size": "0.5"},
        {"optimizer": "sgd", "momentum": "1", "batch-size": "32"},
        {"optimizer": "sgd", "momentum": "2", "batch-size": "0.5"},
        {"optimizer": "sgd", "momentum": "2", "batch-size": "32"},
        {"optimizer": "adam", "batch-size": "0.5"},
        {"optimizer": "adam", "batch-size": "32"},
    ]
    assert list(points[0]) == ["optimizer", "momentum", "batch-size"]
    assert both.grid_size == len(points)

    def ended(number: int, point: dict[str, str]) -> PastTrial:
        return PastTrial(number, point, 0.5, ended=True)

    resumed = [ended(9, points[0]), ended(10, points[4])]
    search = GridSearch()
    found: list[tuple[int, dict[str, str]]] = []
    while point := search.suggest(both, 1, [*resumed, *(ended(*one) for one in found)], len(found) + 1):
        found.append((len(found) + 1, dict(point)))
    assert [point for _, point in found] == [points[1], points[2], points[3], points[5]]
