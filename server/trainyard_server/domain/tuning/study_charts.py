"""Content of a study's page: a bounded number of its trials, the best so far, trials chosen by number. Pure."""

import re
from collections.abc import Iterable, Sequence

from trainyard_server.domain.tuning.study import TrialSnapshot, best_first

MOST_TRIALS = 1000
"""A page has so many trials at most."""

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


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


def best_quarter(trials: Sequence[TrialSnapshot], *, maximize: bool) -> list[int]:
    """The numbers of the best quarter of the trials that have ended with a value; none of fewer than four."""
    ranked = best_first([trial for trial in trials if trial.has_ended], maximize=maximize)
    return [trial.number for trial in ranked[: len(ranked) // 4]] if len(ranked) >= 4 else []


def chosen_numbers(text: str, numbers: Iterable[int]) -> list[int]:
    """The numbers in a text such as `1-5,7`. Raises ValueError for another text, one that is very long, or one without
    a known number."""
    ranges = [_RANGE.fullmatch(part.strip()) for part in text.split(",", MOST_TRIALS)]
    spans = [(int(match[1]), int(match[2] or match[1])) for match in ranges if match is not None]
    chosen = [number for number in numbers if any(low <= number <= high for low, high in spans)]
    if len(spans) < len(ranges) or not chosen:
        raise ValueError(text)
    return chosen
