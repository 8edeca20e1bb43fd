"""Histograms of parameters and gradients, for TensorBoard."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.models.names import by_name
from trainyard_trainer.output.summaries import Summaries
from trainyard_trainer.training.experiment import Experiment
from trainyard_trainer.training.state import State
from trainyard_trainer.training.steps import Variables, make_gradient_step

PyTree = Any


class Histograms:
    """Histograms of each layer, in the run `train`."""

    def __init__(self, experiment: Experiment, summaries: Summaries) -> None:
        self._model, self._strategy, self._summaries = experiment.model, experiment.strategy, summaries
        self._gradient = make_gradient_step(experiment.model, experiment.strategy, experiment.arguments.seed)

    def write(self, training: State, step: int, batch: tuple[Any, Any, Any]) -> None:
        """Add the parameters, and their gradient on a batch, which is computed for this alone. On all processes."""
        variables = Variables(training.params, training.statistics, training.step)
        gradient_P, _, _ = self._gradient(variables, *batch)
        gradients = self._model.params.unravel(self._strategy.to_host(gradient_P))
        params = self._strategy.to_host(training.params)
        values = _finite_by_name("parameters", params) | _finite_by_name("gradients", gradients)
        self._summaries.histograms("train", step, values)


def _finite_by_name(kind: str, tree: PyTree) -> dict[str, NDArray[Any]]:
    """The finite numbers of each array that has some."""
    finite = {f"{kind}/{name}": array[np.isfinite(array)] for name, array in by_name(tree).items()}
    return {name: array for name, array in finite.items() if array.size}
