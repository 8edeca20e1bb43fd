"""The default algorithm of studies: Bayesian optimization by Optuna's TPE sampler.

Optuna's study is built anew out of the past trials in each call, in memory. Optuna and NumPy are imported with the
first suggestion, not with the server.
"""

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainyard_protocol.job.hyperparameters import (
    Algorithm,
    HyperparameterSpec,
    ParameterSpec,
    ParameterType,
    ScaleType,
    Value,
)
from trainyard_server.domain.tuning import space
from trainyard_server.domain.tuning.search import GridSearch, RandomSearch
from trainyard_server.domain.tuning.suggester import PastTrial, Suggester

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, Trial

_STARTUP_TRIALS = 5
"""Drawn at random before the algorithm has something to go by."""
_ATTEMPTS = 20
"""To find a point that no trial has tried."""


class StudySuggester(Suggester):
    """Suggestions by the algorithm of the study that asks."""

    def suggest(
        self, spec: HyperparameterSpec, seed: int, past: Sequence[PastTrial], number: int
    ) -> Mapping[str, str] | None:
        return _search_of(spec.algorithm).suggest(spec, seed, past, number)


def _search_of(algorithm: Algorithm) -> Suggester:
    match algorithm:
        case Algorithm.GRID_SEARCH:
            return GridSearch()
        case Algorithm.RANDOM_SEARCH:
            return RandomSearch()
        case Algorithm.ALGORITHM_UNSPECIFIED:
            return OptunaSearch()


class OptunaSearch(Suggester):
    """TPE over all parameters together; conditional ones each for itself, by the trials that have it.

    Running trials count as bad ones, so that trials beside each other differ. A trial that ended without a metric
    counts as worse than all that have one. A point is tried again only where no other was found.
    """

    def suggest(
        self, spec: HyperparameterSpec, seed: int, past: Sequence[PastTrial], number: int
    ) -> Mapping[str, str] | None:
        optuna = _optuna()
        study = optuna.create_study(
            storage=optuna.storages.InMemoryStorage(),
            sampler=optuna.samplers.TPESampler(seed=_seed(seed, number), n_startup_trials=_STARTUP_TRIALS),
            direction="minimize" if spec.minimizes else "maximize",
        )
        tried = set()
        for trial in past:
            frozen = _frozen(optuna, spec, trial)
            if frozen is not None:
                study.add_trial(frozen)
                tried.add(frozenset(trial.parameters.items()))
        point: dict[str, str] = {}
        for _ in range(_ATTEMPTS):
            asked = study.ask()
            point = space.written(spec, space.walk(spec, functools.partial(_chosen, asked)))
            if frozenset(point.items()) not in tried:
                break
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
        return point


@functools.cache
def _optuna() -> Any:
    import optuna

    optuna.logging.disable_default_handler()
    return optuna


def _seed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4])


def _frozen(optuna: Any, spec: HyperparameterSpec, trial: PastTrial) -> "FrozenTrial | None":
    """A past trial as Optuna has it; None if its parameters are not of this space."""
    try:
        values = space.read(spec, trial.parameters)
    except space.OutsideSpace:
        return None
    params = space.by_name(spec)
    states = optuna.trial.TrialState
    is_measured = trial.value is not None and math.isfinite(trial.value)
    frozen: FrozenTrial = optuna.trial.create_trial(
        params={name: _internal(params[name], value) for name, value in values.items()},
        distributions={name: _distribution(optuna, params[name]) for name in values},
        value=trial.value if trial.ended and is_measured else None,
        state=states.RUNNING if not trial.ended else states.COMPLETE if is_measured else states.PRUNED,
    )
    return frozen


def _chosen(trial: "Trial", param: ParameterSpec) -> Value:
    """The value that Optuna suggests. Values on a list by their place in it, if they have an order."""
    name = param.parameter_name
    if param.type is ParameterType.CATEGORICAL:
        return str(trial.suggest_categorical(name, param.categorical_values))
    if param.type is ParameterType.DISCRETE:
        place: int = trial.suggest_int(name, 0, len(param.discrete_values) - 1)
        return param.discrete_values[place]
    low, high = param.bounds
    if param.type is ParameterType.INTEGER:
        return _mirrored(param, trial.suggest_int(name, int(low), int(high), log=_is_logarithmic(param)))
    return _mirrored(param, trial.suggest_float(name, low, high, log=_is_logarithmic(param)))


def _distribution(optuna: Any, param: ParameterSpec) -> "BaseDistribution":
    """The distribution that `_chosen` asks for."""
    distribution: BaseDistribution
    kinds = optuna.distributions
    if param.type is ParameterType.CATEGORICAL:
        distribution = kinds.CategoricalDistribution(param.categorical_values)
    elif param.type is ParameterType.DISCRETE:
        distribution = kinds.IntDistribution(0, len(param.discrete_values) - 1)
    else:
        kind = kinds.IntDistribution if param.type is ParameterType.INTEGER else kinds.FloatDistribution
        number = int if param.type is ParameterType.INTEGER else float
        low, high = param.bounds
        distribution = kind(number(low), number(high), log=_is_logarithmic(param))
    return distribution


def _is_logarithmic(param: ParameterSpec) -> bool:
    return param.scale_type in (ScaleType.UNIT_LOG_SCALE, ScaleType.UNIT_REVERSE_LOG_SCALE)


def _internal(param: ParameterSpec, value: Value) -> Value:
    if param.type is ParameterType.DISCRETE:
        return param.discrete_values.index(float(value))
    return _mirrored(param, value)


def _mirrored(param: ParameterSpec, value: Value) -> Value:
    if param.scale_type is not ScaleType.UNIT_REVERSE_LOG_SCALE or isinstance(value, str):
        return value
    low, high = param.bounds
    if param.type is ParameterType.INTEGER:
        return int(low) + int(high) - int(value)
    return min(max(low + high - value, low), high)
