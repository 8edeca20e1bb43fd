"""The default algorithm of studies against random search: distance to the known minimum of three functions."""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_server.control.optuna_search import StudySuggester
from trainyard_server.domain.tuning.suggester import PastTrial

TRIALS, PARALLEL, SEEDS = 25, 2, 7
HARTMANN = (  # weight, widths, centers
    (1.0, (10, 3, 17, 3.5, 1.7, 8), (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886)),
    (1.2, (0.05, 10, 17, 0.1, 8, 14), (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991)),
    (3.0, (3, 3.5, 1.7, 10, 17, 8), (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650)),
    (3.2, (17, 8, 0.05, 10, 0.1, 14), (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381)),
)


class Function(NamedTuple):
    """A function to minimize, measured with `noise`. `bounds`: of each of its parameters."""

    value: Callable[[Sequence[float]], float]
    bounds: Sequence[tuple[float, float]]
    noise: float = 0.0


def branin(point: Sequence[float]) -> float:
    x, y = point
    valley = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return valley**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def hartmann(point: Sequence[float]) -> float:
    return -sum(
        weight * math.exp(-sum(w * (x - c) ** 2 for w, x, c in zip(widths, point, centers, strict=True)))
        for weight, widths, centers in HARTMANN
    )


def quadratic(point: Sequence[float]) -> float:
    return sum((x - 0.3) ** 2 for x in point)


def best(function: Function, algorithm: str, seed: int) -> float:
    """The value, without noise, of the trial that a study takes for its best."""
    params = [
        {"parameterName": f"x{number}", "type": "DOUBLE", "minValue": low, "maxValue": high}
        | {"scaleType": "UNIT_LINEAR_SCALE"}
        for number, (low, high) in enumerate(function.bounds)
    ]
    spec = HyperparameterSpec.model_validate(
        {"goal": "MINIMIZE", "params": params, "algorithm": algorithm, "maxTrials": TRIALS}
    )
    suggester, noise = StudySuggester(), random.Random(seed)
    past: list[PastTrial] = []

    def end(trial: PastTrial) -> PastTrial:
        value = function.value(point(trial)) + noise.gauss(0, function.noise)
        return PastTrial(trial.number, trial.parameters, value, ended=True)

    for number in range(1, TRIALS + 1):
        if number > PARALLEL:  # the oldest that runs ends, and makes room
            past[number - PARALLEL - 1] = end(past[number - PARALLEL - 1])
        suggested = suggester.suggest(spec, seed, past, number)
        assert suggested is not None
        past.append(PastTrial(number, suggested, None, ended=False))
    measured = [trial if trial.ended else end(trial) for trial in past]
    return function.value(point(min(measured, key=lambda trial: trial.value or 0.0)))


def point(trial: PastTrial) -> list[float]:
    return list(map(float, trial.parameters.values()))


@pytest.mark.parametrize(
    "function",
    [
        Function(branin, ((-5, 10), (0, 15))),
        Function(hartmann, ((0, 1),) * 6),
        Function(quadratic, ((-1, 1),) * 4, noise=0.1),
    ],
    ids=["Branin", "Hartmann 6", "noisy quadratic"],
)
def test_default_algorithm_comes_nearer_to_the_minimum_than_random_search(function: Function) -> None:
    default, drawn = (
        statistics.median(best(function, algorithm, seed) for seed in range(SEEDS))
        for algorithm in ("ALGORITHM_UNSPECIFIED", "RANDOM_SEARCH")
    )
    assert default < drawn
