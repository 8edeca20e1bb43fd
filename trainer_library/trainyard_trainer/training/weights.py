"""Parameters of an earlier training: --init-from.

It names a job directory, with an exported model or checkpoints, or a safetensors file, on a path or gs://... A name is
that of the parameter in the network, such as Dense_0/kernel.
"""

import json
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.errors import CheckpointError
from trainyard_trainer.models.model import FlatTree
from trainyard_trainer.models.names import by_name
from trainyard_trainer.output.export import METADATA
from trainyard_trainer.output.saving import Saver
from trainyard_trainer.storage import open_folder, read_file

PyTree = Any
Arrays = dict[str, NDArray[Any]]

_PREFIXES = re.compile(r"^(?:params/|batch_stats/)?(?:base/)?")
_NAMED = 3  # of all that are missing, in a message


def load(url: str, trees: PyTree, skip: str | None) -> Arrays:
    """The values for the leaves of {"params", "batch_stats"}, by their names.

    Args:
        trees: of `jax.ShapeDtypeStruct`s. Matrices of --lora are new.
        skip: a regular expression for parameters that begin as if there were no file.

    Raises:
        CheckpointError: there is no such file, or it does not have a parameter of this shape.
    """
    there = {_PREFIXES.sub("", name): array for name, array in _read(url, trees).items()}
    found, missing = {}, []
    for name, leaf in by_name(trees).items():
        key = _PREFIXES.sub("", name)
        if (skip and re.search(skip, key)) or key.startswith("lora/"):
            continue
        array = there.get(key)
        if array is None or array.shape != leaf.shape:
            missing.append(f"{key} {list(leaf.shape)}" + ("" if array is None else f" (there {list(array.shape)})"))
        else:
            found[name] = np.asarray(array, np.float32)
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise CheckpointError(
            f"--init-from {url} does not have {', '.join(missing[:_NAMED])}{more}; it has "
            f"{', '.join(list(there)[:_NAMED])} and so on. Name what is to be new by --init-skip REGEX."
        )
    return found


def _read(url: str, trees: PyTree) -> Arrays:
    import safetensors.numpy

    if url.endswith(".safetensors"):
        data = read_file(url)
    else:
        model = open_folder(url).folder("model")
        about = model.read(METADATA)
        name = json.loads(about)["parameters"] if about else "parameters.safetensors"
        data = model.read(name)
    if data is not None:
        return dict(safetensors.numpy.load(data))
    newest = None if url.endswith(".safetensors") else Saver(url, 0, 1).newest()
    if newest is None:
        raise CheckpointError(f"--init-from {url} is no safetensors file, and no job-dir with a model or checkpoints.")
    arrays = newest[1]
    statistics = FlatTree(trees["batch_stats"])
    named = {_key(name): array for name, array in arrays.items() if name.startswith(".params")}
    if statistics.size == arrays[".statistics"].size:
        named |= by_name(statistics.unravel(arrays[".statistics"]))
    return named


def _key(name: str) -> str:
    """Dense_0/kernel, of .params['Dense_0']['kernel']."""
    return "/".join(re.findall(r"\['?([^'\]]+)'?\]", name))
