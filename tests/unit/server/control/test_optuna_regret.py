"""The default algorithm of studies against random search, one and four trials at a time, and with ASHA: regret on
functions with a known minimum, with fixed seeds."""

import statistics
from bisect import bisect_left
from typing import Any

import pytest

from benchmarks.tuning.functions import FUNCTIONS
from benchmarks.tuning.simulation import STEPS, TRIALS, simulated
from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_server.control.optuna_search import StudySuggester
from trainyard_server.domain.tuning.suggester import PastTrial

RANDOM: dict[str, Any] = {"algorithm": "RANDOM_SEARCH"}
ASHA: dict[str, Any] = {"earlyStopping": {"rule": "ASHA"}}
NOISY = [function for function in FUNCTIONS if function.noise]
WHOLE = TRIALS * STEPS


@pytest.mark.long
def test_default_algorithm_is_better_than_random_search_and_keeps_half_of_that_four_at_a_time() -> None:
    """The measure is the part of random searches that are better than a study: half for one of their own."""
    better: dict[int, list[float]] = {1: [], 4: []}
    for function in NOISY:
        drawn = sorted(simulated(function, seed, steps=1, **RANDOM).regret for seed in range(50))
        for parallel, parts in better.items():
            regrets = (simulated(function, seed, steps=1, parallel=parallel).regret for seed in range(12))
            parts += [bisect_left(drawn, regret) / len(drawn) for regret in regrets]
    one, four = (0.5 - statistics.mean(parts) for parts in better.values())
    assert one >= 0.15
    assert four >= one / 2


def test_asha_finds_the_same_best_trial_in_half_of_the_steps() -> None:
    """Random search suggests the same trials with and without early stopping."""
    pairs = [
        (simulated(function, seed, **RANDOM), simulated(function, seed, parallel=4, **RANDOM, **ASHA))
        for function in FUNCTIONS
        for seed in range(2)
    ]
    assert {(full.steps, full.stopped) for full, _ in pairs} == {(WHOLE, ())}
    assert statistics.median(stopped.steps for _, stopped in pairs) <= WHOLE / 2
    assert sum(stopped.regret <= full.regret for full, stopped in pairs) >= 0.9 * len(pairs)


def test_suggestions_keep_away_from_the_trials_that_run() -> None:
    spec = HyperparameterSpec.model_validate(
        {"goal": "MINIMIZE", "params": [{"parameterName": "x", "type": "DOUBLE", "minValue": 0, "maxValue": 1}]}
    )
    places = [number / 15 for number in range(16)]
    ended = [PastTrial(n, {"x": repr(x)}, (x - 0.4) ** 2, ended=True) for n, x in enumerate(places, 1)]
    running = [PastTrial(n, {"x": repr(x)}, None, ended=False) for n, x in enumerate((0.38, 0.4, 0.42), 17)]

    def distance(past: list[PastTrial], seed: int) -> float:
        suggested = StudySuggester().suggest(spec, seed, past, 20)
        assert suggested is not None
        return min(abs(float(suggested["x"]) - float(trial.parameters["x"])) for trial in running)

    beside, alone = (statistics.median(distance(past, n) for n in range(20)) for past in ([*ended, *running], ended))
    assert beside > 2 * alone
