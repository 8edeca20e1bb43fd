"""The default algorithm of studies: Bayesian optimization by Optuna's TPE sampler.

Optuna's study is in memory, and kept for the next suggestion, which adds what is new. The answer depends on the past
trials alone: a new study of the same trials gives the same. Optuna and NumPy are imported with the first suggestion,
not with the server.
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
_KEPT = 16
"""Studies."""
_ATTEMPTS = 20
"""To find a point that no trial has tried."""


class StudySuggester(Suggester):
    """Suggestions by the algorithm of the study that asks."""

    def __init__(self) -> None:
        self._optuna = OptunaSearch()

    def suggest(
        self, spec: HyperparameterSpec, seed: int, past: Sequence[PastTrial], number: int
    ) -> Mapping[str, str] | None:
        return self._search_of(spec.algorithm).suggest(spec, seed, past, number)

    def _search_of(self, algorithm: Algorithm) -> Suggester:
        match algorithm:
            case Algorithm.GRID_SEARCH:
                return GridSearch()
            case Algorithm.RANDOM_SEARCH:
                return RandomSearch()
            case Algorithm.ALGORITHM_UNSPECIFIED:
                return self._optuna


class OptunaSearch(Suggester):
    """TPE over all parameters together; conditional ones each for itself, by the trials that have it.

    Running trials count as bad ones (constant liar), so that trials beside each other differ. A trial that ended
    without a metric counts as worse than all that have one. A point is tried again only where no other was found.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str], _KeptStudy] = {}
        """The studies that were asked last, the newest one last. A thread takes one out while it asks it."""

    def suggest(
        self, spec: HyperparameterSpec, seed: int, past: Sequence[PastTrial], number: int
    ) -> Mapping[str, str] | None:
        optuna = _optuna()
        key = seed, spec.model_dump_json()
        kept = self._kept.pop(key, None)
        if kept is None or not kept.add(past):
            kept = _KeptStudy(optuna, spec)
            kept.add(past)
        kept.study.sampler = optuna.samplers.TPESampler(
            seed=_seed(seed, number), n_startup_trials=_STARTUP_TRIALS, constant_liar=True
        )
        point: Mapping[str, str] = {}
        for _ in range(_ATTEMPTS):
            point = kept.ask()
            if frozenset(point.items()) not in kept.tried:
                break
        self._kept[key] = kept
        for oldest in list(self._kept)[:-_KEPT]:
            self._kept.pop(oldest, None)
        return point


class _KeptStudy:
    """A study of Optuna's, with the past trials of one of ours."""

    def __init__(self, optuna: Any, spec: HyperparameterSpec) -> None:
        self._optuna = optuna
        self._spec = spec
        self.study = optuna.create_study(
            storage=optuna.storages.InMemoryStorage(), direction="minimize" if spec.minimizes else "maximize"
        )
        self.tried: set[frozenset[tuple[str, str]]] = set()
        self._past: list[PastTrial] = []
        self._numbers: list[int | None] = []
        """Optuna's numbers of the past trials; None: of one that is not of this space."""
        self._next = 0  # Optuna's number of the next trial

    def ask(self) -> Mapping[str, str]:
        """A point, which is no trial yet. The sampler looks at no trial that failed."""
        asked = self.study.ask()
        self._next += 1
        point = space.written(self._spec, space.walk(self._spec, functools.partial(_chosen, asked)))
        self.study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
        return point

    def add(self, past: Sequence[PastTrial]) -> bool:
        """Add what is new. False if what was known is another past: trials only end, and are only added."""
        if len(past) < len(self._past):
            return False
        for place, (before, now) in enumerate(zip(self._past, past, strict=False)):
            if before == now:
                continue
            if before.ended or (before.number, before.parameters) != (now.number, now.parameters):
                return False
            self._past[place] = now
            if (number := self._numbers[place]) is not None:
                state = _state(self._optuna, now)
                is_measured = state is self._optuna.trial.TrialState.COMPLETE
                self.study.tell(number, now.value if is_measured else None, None if is_measured else state)
        for trial in past[len(self._past) :]:
            frozen = _frozen(self._optuna, self._spec, trial)
            self._past.append(trial)
            self._numbers.append(None if frozen is None else self._next)
            if frozen is not None:
                self.study.add_trial(frozen)
                self._next += 1
                self.tried.add(frozenset(trial.parameters.items()))
        return True


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
    state = _state(optuna, trial)
    frozen: FrozenTrial = optuna.trial.create_trial(
        params={name: _internal(params[name], value) for name, value in values.items()},
        distributions={name: _distribution(optuna, params[name]) for name in values},
        value=trial.value if state is optuna.trial.TrialState.COMPLETE else None,
        state=state,
    )
    return frozen


def _state(optuna: Any, trial: PastTrial) -> Any:
    states = optuna.trial.TrialState
    if not trial.ended:
        return states.RUNNING
    return states.COMPLETE if trial.value is not None and math.isfinite(trial.value) else states.PRUNED


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
