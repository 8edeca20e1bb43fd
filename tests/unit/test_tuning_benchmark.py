"""The default algorithm of studies against random search, as in `python -m benchmarks.tuning` with a smaller budget."""

import statistics

import pytest

from benchmarks.tuning.__main__ import ALGORITHMS, regret
from benchmarks.tuning.functions import FUNCTIONS, TestFunction


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_default_algorithm_has_less_median_regret_than_random_search(function: TestFunction) -> None:
    default, drawn = (
        statistics.median(regret(function, name, trials=25, parallel=2, seed=seed) for seed in range(7))
        for name in ALGORITHMS
    )
    assert default < drawn
