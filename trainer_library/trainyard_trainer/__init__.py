"""Training with JAX: a model in one file, on one device, on all of a machine, or on a gang.

    from trainyard_trainer import TrainingTask, from_arrays, linen, run

    task = TrainingTask(network=linen(Network()), data=data)

    if __name__ == "__main__":
        run(task)

The public surface is these names, the flags (arguments.py), the lines on stdout (output/report.py) and the files in the
job directory (output/saving.py, output/export.py).
"""

import importlib
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from trainyard_trainer.data.datasets import from_arrays
    from trainyard_trainer.models.task import DataSpec, Evaluation, NetworkFunctions, TrainingTask, linen
    from trainyard_trainer.output.export import load

__version__ = "0.3.0"
__all__ = ["DataSpec", "Evaluation", "NetworkFunctions", "TrainingTask", "from_arrays", "linen", "load", "run"]

_MODULES = {
    "from_arrays": "data.datasets",
    "load": "output.export",
    **dict.fromkeys(("DataSpec", "Evaluation", "NetworkFunctions", "TrainingTask", "linen"), "models.task"),
}


def run(task: "TrainingTask") -> NoReturn:
    """Train a task by the flags of the command line, and end the process with the exit code of the training."""
    from trainyard_trainer.task import main

    main(task=task)


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: flags are refused before JAX is imported."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
