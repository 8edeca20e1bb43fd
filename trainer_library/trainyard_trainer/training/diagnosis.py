"""The cause of a loss that is not finite: values in the examples, or the training itself."""

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.data.datasets import DataError, Dataset, Shard, Split
from trainyard_trainer.data.packing import Layout, unpack
from trainyard_trainer.data.sharding import epoch_order
from trainyard_trainer.errors import TrainerError
from trainyard_trainer.models.model import Model
from trainyard_trainer.training.state import TrainingPosition

AT_ONCE = 256  # examples that are read together


def cause(
    error: TrainerError,
    dataset: Dataset,
    model: Model,
    shard: Shard,
    seed: int,
    position: TrainingPosition,
    examples: int,
) -> TrainerError:
    """The error that the examples of the last steps explain, or the given one, which then says that they are finite.

    Args:
        error: of a loss or a state that is not finite.
        position: after the last step, in its epoch.
        examples: of the epoch's order before the position that are looked at.
    """
    order = epoch_order(dataset, shard, seed, position.epochs)
    read = order[max(0, position.examples - examples) : position.examples]
    problem = wrong_values(dataset.train, read, model, shard)
    if problem:
        return DataError(f"{str(error).partition('. ')[0]}. {problem}")
    return type(error)(f"{error} The inputs and labels that this process has read in the last steps are finite.")


def wrong_values(split: Split, numbers: NDArray[np.int64], model: Model, shard: Shard) -> str | None:
    """A sentence on the first example with NaN, infinity or a label that is no output, of those this process reads."""
    if split.owners is not None:
        owners = np.asarray(split.owners)[np.searchsorted(split.starts, numbers, side="right") - 1]
        numbers = numbers[owners == shard.process_id]
    for start in range(0, len(numbers), AT_ONCE):
        some = numbers[start : start + AT_ONCE]
        inputs, labels = split.rows(some)
        for what, array, layout in zip(("inputs", "labels"), (inputs, labels), model.layouts, strict=True):
            for name, part in _parts(what, array, layout).items():
                if part.dtype.kind != "f" or np.isfinite(part).all():
                    continue
                each = ~np.isfinite(part.reshape(len(part), -1))
                row = int(np.argmax(each.any(axis=1)))
                value = part.reshape(len(part), -1)[row][each[row]][0]
                return (
                    f"The {name} of {split.description(int(some[row]))} have {value}. Remove such examples, or put "
                    "numbers in their place, such as the mean of the others."
                )
        classes = 0 if model.layouts[1] or labels.dtype.kind == "f" else model.outputs_for(labels.shape[1:])
        outside = (labels < 0) | (labels >= classes)
        if classes and outside.any():
            row = int(np.argmax(outside.reshape(len(labels), -1).any(axis=1)))
            return (
                f"The label of {split.description(int(some[row]))} is {labels[row][outside[row]].ravel()[0]}, and the "
                f"network has {classes} outputs. If labels are classes, they are 0 to {classes - 1}."
            )
    return None


def _parts(what: str, array: NDArray[np.generic], layout: Layout) -> dict[str, NDArray[np.generic]]:
    """The arrays of examples, by what to call them."""
    if not layout:
        return {what: array}
    return {f"{what} {name!r}": np.asarray(part) for name, part in unpack(array, layout).items()}  # type: ignore[arg-type]
