"""Content of a study's page: a bounded number of its trials, and the best so far. Pure."""

from collections.abc import Sequence

from trainyard_server.domain.tuning.study import TrialSnapshot, best_first

MOST_TRIALS = 1000
"""A page has so many trials at most."""


def sample(trials: Sequence[TrialSnapshot], *, maximize: bool, most: int = MOST_TRIALS) -> set[int]:
    """The numbers of the trials to show: all, else the better half of them by metric and the newest."""
    if len(trials) <= most:
        return {trial.number for trial in trials}
    shown = {trial.number for trial in best_first(trials, maximize=maximize)[: most // 2]}
    for trial in sorted(trials, key=lambda point: point.number, reverse=True):
        if len(shown) == most:
            break
        shown.add(trial.number)
    return shown


def records(trials: Sequence[TrialSnapshot], *, maximize: bool) -> list[tuple[int, float]]:
    """The trials, by number, that were better than all before them."""
    best: list[tuple[int, float]] = []
    for trial in trials:
        if trial.value is None:
            continue
        if not best or (trial.value > best[-1][1] if maximize else trial.value < best[-1][1]):
            best.append((trial.number, trial.value))
    return best
