"""GRID_SEARCH and RANDOM_SEARCH. Pure."""

import random
from collections.abc import Mapping, Sequence
from itertools import islice

from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_server.domain.tuning import space
from trainyard_server.domain.tuning.suggester import PastTrial, Suggester


class GridSearch(Suggester):
    """Every point once, in the order of `space.grid`. Points of past trials are left out, also of a resumed study."""

    def suggest(
        self,
        spec: HyperparameterSpec,
        seed: int,  # noqa: ARG002
        past: Sequence[PastTrial],
        number: int,  # noqa: ARG002
    ) -> Mapping[str, str] | None:
        tried = {frozenset(trial.parameters.items()) for trial in past}
        params = space.by_name(spec)
        points = (space.written_with(params, point) for point in islice(space.grid(spec.params), len(tried) + 1))
        return next((point for point in points if frozenset(point.items()) not in tried), None)


class RandomSearch(Suggester):
    """A point of the space drawn for each trial by itself, whatever the others were."""

    def suggest(
        self,
        spec: HyperparameterSpec,
        seed: int,
        past: Sequence[PastTrial],  # noqa: ARG002
        number: int,
    ) -> Mapping[str, str] | None:
        draw = random.Random(f"{seed} {number}")  # noqa: S311 - to be repeated, not to be secret
        return space.written(spec, space.walk(spec, lambda param: space.point_at(param, draw.random())))
