"""Regret of the default algorithm of studies and of random search of the same budget, on functions whose minimum is
known."""

import argparse
import random
import statistics
from collections.abc import Sequence

from benchmarks.tuning.functions import FUNCTIONS, TestFunction
from trainyard_server.control.optuna_search import StudySuggester
from trainyard_server.domain.tuning.suggester import PastTrial

ALGORITHMS = ("ALGORITHM_UNSPECIFIED", "RANDOM_SEARCH")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--parallel", type=int, default=3, help="trials at a time")
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args(arguments)
    print(
        f"{given.trials} trials, {given.parallel} at a time; median regret of {given.seeds} seeds (quartiles)"
    )
    for function in FUNCTIONS:
        by_algorithm = [
            [regret(function, name, given.trials, given.parallel, seed) for seed in range(given.seeds)]
            for name in ALGORITHMS
        ]
        default, drawn = map(_quartiles, by_algorithm)
        print(
            f"{function.name:<16} default {_shown(default)}  random {_shown(drawn)}  "
            f"ratio {default[1] / drawn[1]:.2f}"
        )


def regret(function: TestFunction, algorithm: str, trials: int, parallel: int, seed: int) -> float:
    """Regret of the trial that a study takes for its best."""
    spec = function.spec(algorithm, trials)
    suggester = StudySuggester()
    noise = random.Random(seed)  # noqa: S311 - to be repeated
    past: list[PastTrial] = []
    for number in range(1, trials + 1):
        if number > parallel:  # the oldest that runs ends, and makes room
            past[number - parallel - 1] = _ended(past[number - parallel - 1], function, noise)
        point = suggester.suggest(spec, seed, past, number)
        assert point is not None
        past.append(PastTrial(number, point, None, ended=False))
    measured = [trial if trial.ended else _ended(trial, function, noise) for trial in past]
    best = min(measured, key=lambda trial: trial.value or 0.0)
    return function.regret(_point(best))


def _ended(trial: PastTrial, function: TestFunction, noise: random.Random) -> PastTrial:
    return PastTrial(trial.number, trial.parameters, function.measured(_point(trial), noise), ended=True)


def _point(trial: PastTrial) -> list[float]:
    return list(map(float, trial.parameters.values()))


def _quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive")


def _shown(quartiles: list[float]) -> str:
    low, median, high = quartiles
    return f"{median:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
