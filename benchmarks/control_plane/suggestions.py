"""The next trial of a study, by the default algorithm."""

import random
import time
from functools import partial

from benchmarks.rows import Row, Samples, interleaved
from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_server.control.optuna_search import StudySuggester
from trainyard_server.domain.tuning.suggester import PastTrial

_SPEC = HyperparameterSpec.model_validate(
    {
        "goal": "MINIMIZE",
        "params": [
            {"parameterName": "lr", "type": "DOUBLE", "minValue": 1e-5, "maxValue": 1, "scaleType": "UNIT_LOG_SCALE"},
            {"parameterName": "units", "type": "INTEGER", "minValue": 1, "maxValue": 512},
            {"parameterName": "optimizer", "type": "CATEGORICAL", "categoricalValues": ["adam", "sgd", "lamb"]},
        ],
    }
)
_SEED = 1


def _suggestions(trials: int, quick: bool) -> Samples:
    """Each suggestion has one more past trial; beside it that of a server that has just started."""
    draw = random.Random(_SEED)  # noqa: S311 - points of a study
    past: list[PastTrial] = []
    going_on = StudySuggester()

    def add() -> None:
        values = {"lr": str(10 ** draw.uniform(-5, 0)), "units": str(draw.randint(1, 512))}
        parameters = {**values, "optimizer": draw.choice(["adam", "sgd", "lamb"])}
        past.append(PastTrial(len(past) + 1, parameters, draw.random(), ended=True))

    def milliseconds(suggester: StudySuggester) -> float:
        began = time.process_time()
        suggester.suggest(_SPEC, _SEED, past, len(past) + 1)
        return (time.process_time() - began) * 1000

    def ours() -> float:
        add()
        return milliseconds(going_on)

    for _ in range(trials):
        add()
    return interleaved(ours, lambda: milliseconds(StudySuggester()), 5 if quick else 25, "ms", warm_up=2)


ROWS = tuple(
    Row(
        f"suggestion-{trials}",
        f"a suggestion of a study with {trials:,} past trials: CPU",
        "the first one of a server that has just started",
        10.0,
        partial(_suggestions, trials),
        bound="Optuna's TPE, which weighs all past trials",
        is_figure=True,
    )
    for trials in (200, 1000)
)
