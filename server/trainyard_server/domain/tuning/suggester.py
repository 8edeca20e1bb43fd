"""The contract of suggestions: which parameters the next trial of a study gets.

A suggester may remember what it has computed, and nothing else. The same arguments give the same answer in every
process, so that a server that dies and another that goes on create the same trial.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainyard_protocol.job.hyperparameters import HyperparameterSpec


@dataclass(frozen=True, slots=True)
class PastTrial:
    """A trial of the study, or of the study that it resumes."""

    number: int
    parameters: Mapping[str, str]
    """The values as the program got them."""
    value: float | None
    """The final metric. None while it runs, if it failed, and if it reported none."""
    ended: bool


class Suggester(Protocol):
    def suggest(
        self, spec: HyperparameterSpec, seed: int, past: Sequence[PastTrial], number: int
    ) -> Mapping[str, str] | None:
        """Parameters of trial `number`, in the order of the spec; None once the space is exhausted (GRID_SEARCH).

        `past` has every trial that exists, first those of the study that is resumed, each in the order of its numbers.
        Those of another space are left out.
        """
        ...
