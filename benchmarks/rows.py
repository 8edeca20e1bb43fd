"""Row of the table of benchmarks: what is measured, beside what it is compared with in the same minutes."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass


class LeftOut(Exception):
    """A row cannot run on this machine. The message is a sentence that says what is missing."""


@dataclass(frozen=True, slots=True)
class Samples:
    """One measurement of each round for both sides, in one unit (`s`, `ms`, `jobs/s`), compared by their ratio or by
    their difference."""

    measured: list[float]
    against: list[float]
    unit: str
    is_difference: bool = False

    @property
    def figures(self) -> list[float]:
        """Figures of each round, sorted. Rounds are compared with themselves: the machine changes between them."""
        rounds = zip(self.measured, self.against, strict=True)
        return sorted(one - other if self.is_difference else one / other for one, other in rounds)

    @property
    def figure(self) -> float:
        return statistics.median(self.figures)

    @property
    def spread(self) -> tuple[float, float]:
        """Nearly all rounds: without a tenth of them at both ends."""
        figures = self.figures
        out = len(figures) // 10
        return figures[out], figures[-out - 1]

    def text(self, figure: float) -> str:
        """`1.25`, or `+0.30 s`"""
        return f"{figure:+.2f} {self.unit}" if self.is_difference else f"{figure:.2f}"


@dataclass(frozen=True, slots=True)
class Row:
    """A benchmark. `reach`: the figure that is wanted, at most, or with `is_rate` at least; with `is_figure` the median
    of what is measured, alone. `bound`: what bounds it.

    `run` starts whatever both sides need, by itself, or raises LeftOut; `quick` leaves out rounds, and shortens what
    is long.
    """

    name: str
    what: str
    against: str
    reach: float
    run: Callable[[bool], Samples]
    bound: str = ""
    is_rate: bool = False
    is_figure: bool = False
    in_quick: bool = True

    def is_reached(self, samples: Samples) -> bool:
        figure = statistics.median(samples.measured) if self.is_figure else samples.figure
        return figure >= self.reach if self.is_rate else figure <= self.reach


def interleaved(
    measured: Callable[[], float],
    against: Callable[[], float],
    rounds: int,
    unit: str,
    warm_up: int = 1,
    is_difference: bool = False,
) -> Samples:
    """Rounds of both sides, alternately first."""
    samples = Samples([], [], unit, is_difference)
    for number in range(rounds + warm_up):
        if number % 2:
            other = against()
            one = measured()
        else:
            one = measured()
            other = against()
        if number >= warm_up:
            samples.measured.append(one)
            samples.against.append(other)
    return samples
