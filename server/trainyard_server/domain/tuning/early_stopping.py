"""Rules of early stopping: whether a running trial of a study is stopped, by the curves of its trials. Pure.

Nothing is remembered: a decision follows from the curves that are stored, so a server that was restarted, or that got
many reports at once, stops the same trials.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from trainyard_protocol.job.hyperparameters import EarlyStopping, EarlyStoppingRule
from trainyard_server.domain.tuning.measurements import Measurement

STARTUP_TRIALS = 3
"""Trials that must have completed before the median rule stops one."""


@dataclass(frozen=True, slots=True)
class TrialCurve:
    """The measurements of a trial by step, and the steps at which its metric was NaN or infinite."""

    measurements: Sequence[Measurement]
    not_finite: Sequence[int] = ()

    @property
    def last_step(self) -> int | None:
        steps = [*(step for step, _ in self.measurements[-1:]), *self.not_finite[-1:]]
        return max(steps, default=None)


def reason_to_stop(
    rule: EarlyStopping,
    trial: TrialCurve,
    before: Sequence[TrialCurve],
    completed: Sequence[TrialCurve],
    *,
    maximize: bool,
) -> str:
    """The reason why the trial is to be stopped, as the end of a sentence; "" where it goes on. `before`: the trials
    that were created before it, but for those that failed; `completed`: those that ended well and were not stopped."""
    if rule.rule is EarlyStoppingRule.ASHA:
        return _by_asha(rule, trial, before, completed, maximize=maximize)
    return _by_median(trial.measurements, [other.measurements for other in completed], maximize=maximize)


def _by_median(own: Sequence[Measurement], completed: Sequence[Sequence[Measurement]], *, maximize: bool) -> str:
    """The median rule of Vizier: whether the best value so far is worse than the median of the averages that the
    completed trials had at the same step. "" until STARTUP_TRIALS of those have values there."""
    if not own:
        return ""
    last = own[-1][0]
    earlier = ([value for step, value in other if step <= last] for other in completed)
    averages = [sum(values) / len(values) for values in earlier if values]
    if len(averages) < STARTUP_TRIALS:
        return ""
    values = [value for _, value in own]
    best, needed = max(values) if maximize else min(values), median(averages)
    if best >= needed if maximize else best <= needed:
        return ""
    return f"the median rule: best {best:.6g} at step {last}, {needed:.6g} needed"


def _by_asha(
    rule: EarlyStopping,
    trial: TrialCurve,
    before: Sequence[TrialCurve],
    completed: Sequence[TrialCurve],
    *,
    maximize: bool,
) -> str:
    """Asynchronous successive halving: at each rung the trial has to be among the best 1 / reduction factor of itself
    and the trials before it that have reached this rung, or, with fewer than the factor, the best. A value that is not
    finite is not among the best."""
    longest = max((other.last_step or 0 for other in completed), default=0)
    first = rule.min_steps or (max(1, longest // rule.reduction_factor**2) if longest else 0)
    for number, rung in enumerate(_rungs(first, rule.reduction_factor, trial.last_step, longest)):
        own = _loss_at(trial, rung, maximize=maximize)
        if own is None:
            continue
        losses = sorted(
            [own, *(loss for other in before if (loss := _loss_at(other, rung, maximize=maximize)) is not None)]
        )
        needed = losses[max(1, len(losses) // rule.reduction_factor) - 1]
        if own > needed or own == math.inf:
            what = "not finite" if own == math.inf else f"{-own if maximize else own:.6g}"
            wanted = "" if needed == math.inf else f", {-needed if maximize else needed:.6g} needed"
            return f"ASHA: {what} at step {rung} (rung {number}){wanted}"
    return ""


def _rungs(first: int, factor: int, last_step: int | None, longest: int) -> Iterator[int]:
    """The steps of the rungs that a trial has reached, before the end of the `longest` trial that completed (0: none
    did). `first` 0: there is no rung yet."""
    rung = first
    while first and last_step is not None and rung <= last_step and (rung < longest or not longest):
        yield rung
        rung *= factor


def _loss_at(trial: TrialCurve, rung: int, *, maximize: bool) -> float | None:
    """The last value at or before the rung, negated to maximize, of a trial that has reached it; inf: NaN or infinite.
    None without a value."""
    last = trial.last_step
    if last is None or last < rung:
        return None
    at = bisect_right(trial.measurements, rung, key=lambda measurement: measurement[0])
    step, value = trial.measurements[at - 1] if at else (None, math.inf)
    place = bisect_right(trial.not_finite, rung)
    if place and (step is None or trial.not_finite[place - 1] > step):
        return math.inf
    return None if step is None else -value if maximize else value
