"""A study of simulated trials, by the server's own decisions: `domain.tuning.study` and the suggester.

Time is simulated: a step of a trial takes as long as its speed says, which is drawn by the seed. The same seed gives
the same study.
"""

import hashlib
import heapq
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from benchmarks.tuning.functions import Function
from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_protocol.states import JobState
from trainyard_server.control.optuna_search import StudySuggester
from trainyard_server.domain.tuning.study import (
    CreateTrial,
    LogTrial,
    MoveStudy,
    StopTrials,
    StudySnapshot,
    TrialPhase,
    TrialSnapshot,
    best_of,
    past_trials,
    step,
)

TRIALS = 30
STEPS = 27
"""Steps of a trial, each with a report."""

_CREATED = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StudyResult:
    """The regret of the study's best trial (its true value, not the measured one), the steps that all trials have
    trained, and the numbers of those that were stopped early."""

    regret: float
    steps: int
    stopped: tuple[int, ...]


def simulated(
    function: Function, seed: int, *, parallel: int = 1, trials: int = TRIALS, steps: int = STEPS, **fields: Any
) -> StudyResult:
    """Run a study of the function. `steps` 1: each trial reports its last value alone. `fields` of `hyperparameters`
    beside goal, parameters and counts: `algorithm`, `earlyStopping`."""
    return _Simulation(function, seed, parallel, trials, steps, fields).run()


class _Simulation:
    def __init__(
        self, function: Function, seed: int, parallel: int, trials: int, steps: int, fields: Mapping[str, Any]
    ) -> None:
        self._function, self._steps = function, steps
        # Studies of the algorithms differ in nothing else.
        self._seed = int.from_bytes(hashlib.sha256(f"{function.name} {seed}".encode()).digest()[:6])
        spec = {"goal": "MINIMIZE", "params": function.params, "maxTrials": trials, "maxParallelTrials": parallel}
        parsed = HyperparameterSpec.model_validate({**spec, **fields})
        self._study = StudySnapshot(1, "p", "study", JobState.RUNNING, parsed, self._seed)
        self._suggester = StudySuggester()
        self._reports: list[tuple[float, int, int]] = []
        """The next report of each running trial: its time, the trial's number and the step."""
        self._trained: dict[int, int] = {}

    def run(self) -> StudyResult:
        self._decide(0.0)
        while self._reports:
            now, number, at = heapq.heappop(self._reports)
            self._report(now, number, at)
            self._decide(now)
        best = best_of(self._study.trials, maximize=False)
        if best is None:
            raise AssertionError("no trial has reported a value")
        stopped = tuple(trial.number for trial in self._study.trials if trial.stopped_early)
        return StudyResult(self._function.regret(best.parameters), sum(self._trained.values()), stopped)

    def _report(self, now: float, number: int, at: int) -> None:
        trial = self._study.trials[number - 1]
        if trial.has_ended:
            return
        self._trained[number] = at
        noise = random.Random(f"{self._seed} {number} {at}").gauss(0, self._function.noise)  # noqa: S311 - simulated
        is_last = at == self._steps
        exact = self._function.regret(trial.parameters)
        value = (exact if is_last else self._function.curve(trial.parameters, at / self._steps)) + noise
        measurements = (*trial.measurements, (at, value))
        state = JobState.SUCCEEDED if is_last else JobState.RUNNING
        self._replace(replace(trial, measurements=measurements, final=(at, value), job_state=state))
        if not is_last:
            self._plan(now, number, at + 1)

    def _plan(self, now: float, number: int, at: int) -> None:
        speed = random.Random(f"{self._seed} {number}").uniform(0.7, 1.3)  # noqa: S311 - simulated
        heapq.heappush(self._reports, (now + speed, number, at))

    def _replace(self, trial: TrialSnapshot) -> None:
        trials = list(self._study.trials)
        trials[trial.number - 1 : trial.number] = [trial]
        self._study = replace(self._study, trials=tuple(trials))

    def _decide(self, now: float) -> None:
        while (decision := step(self._study)) is not None:
            match decision:
                case CreateTrial(number):
                    past = past_trials(self._study)
                    parameters = self._suggester.suggest(self._study.spec, self._seed, past, number)
                    if parameters is None:
                        raise AssertionError("the space has no further trial")
                    new = TrialSnapshot(
                        number, number, f"study.{number}", JobState.RUNNING, parameters, _CREATED, started_at=_CREATED
                    )
                    self._replace(new)
                    self._plan(now, number, 1)
                case StopTrials(numbers, message):
                    for number in numbers:
                        trial = self._study.trials[number - 1]
                        self._replace(replace(trial, job_state=JobState.CANCELLED, stopped_early=True, error=message))
                case LogTrial(number, phase):
                    self._replace(replace(self._study.trials[number - 1], logged=TrialPhase(phase)))
                case MoveStudy(state):
                    self._study = replace(self._study, state=state)
                case _:
                    raise AssertionError(f"a study of trials that report does not come to {decision}")
