"""Export of the trained model (jax.export), which can be loaded with JAX alone, without this package and flax.

    model/function-<hash>.jax             the network as StableHLO for CPU, CUDA and TPU
    model/parameters-<hash>.safetensors   parameters and statistics, by the layers' names
    model/model.json                      names of both files; inputs, outputs and labels

To call it:

    import json, pathlib, jax, safetensors.numpy
    folder = pathlib.Path("output/model")
    about = json.loads((folder / "model.json").read_text())
    function = jax.export.deserialize(bytearray((folder / about["function"]).read_bytes()))
    parameters = safetensors.numpy.load_file(folder / about["parameters"])
    outputs = function.call(parameters, inputs)        # inputs [B, ...] -> {"logits": ..., "probabilities": ...}

B is any number, and each of PLATFORMS will do, unless model.json has others in `input` and `platforms`.
"""

import dataclasses
import hashlib
import json
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from trainyard_trainer.models.names import by_name
from trainyard_trainer.output import tensors
from trainyard_trainer.storage import open_folder

if TYPE_CHECKING:
    from trainyard_trainer.models.model import Model

PyTree = Any

log = logging.getLogger("trainer")

PLATFORMS = ("cpu", "cuda", "tpu")
METADATA = "model.json"


class ModelFunction(NamedTuple):
    """The exported network, without values of its parameters; `about` is its part of model.json."""

    data: bytes
    about: dict[str, Any]


def export_function(model: "Model", batch_size: int, label_names: tuple[str, ...]) -> ModelFunction | None:
    """Export the network by the shapes of its parameters, so that it can be done before the training.

    A network that does not work with a batch of any size is exported for batches of `batch_size`; one that cannot be
    lowered for every platform, for that of this process. Either is a warning, and so is None: it cannot be exported.
    """
    first: Exception | None = None
    for platforms in (PLATFORMS, (jax.export.default_export_platform(),)):
        for batch in ("B", batch_size):
            try:
                function = _function(model, batch, platforms, label_names)
            except Exception as error:  # noqa: BLE001 - of the network, the task or JAX
                first = first or error
                continue
            if first is not None:
                log.warning(
                    "The model will be exported for %s on %s: the network cannot be exported for batches of any size "
                    "on %s. (%s)", "batches of any size" if batch == "B" else f"batches of {batch}",
                    ", ".join(platforms), ", ".join(PLATFORMS), summary(first),
                )  # fmt: skip
            return function
    log.warning(
        "The model cannot be exported; training continues, and its checkpoints are all that it will leave. Mend the "
        "network, `exported` of its task or the labels' names, and start the same command again. (%s)", summary(first),
    )  # fmt: skip
    return None


def model_files(
    function: ModelFunction, model: "Model", params: PyTree, statistics: Any, facts: dict[str, Any]
) -> dict[str, bytes]:
    """File name -> content; model.json, which refers to the others, is last.

    Args:
        params, statistics: on the host.
        facts: further entries of model.json.
    """
    parameters = {
        name: np.ascontiguousarray(leaf, np.float32)
        for name, leaf in by_name(_trees(params, model.statistics.unravel(statistics))).items()
    }
    parameters_data = safetensors.numpy.save(parameters)
    function_sha256, parameters_sha256 = _sha256(function.data), _sha256(parameters_data)
    function_name = f"function-{function_sha256[:8]}.jax"
    parameters_name = f"parameters-{parameters_sha256[:8]}.safetensors"
    about = {
        **function.about,
        **facts,
        "function": function_name,
        "function_sha256": function_sha256,
        "parameters": parameters_name,
        "parameters_file_sha256": parameters_sha256,
        "jax": jax.__version__,
    }
    return {
        function_name: function.data,
        parameters_name: parameters_data,
        METADATA: json.dumps(about, indent=2).encode() + b"\n",
    }


def _function(
    model: "Model", batch: str | int, platforms: tuple[str, ...], label_names: tuple[str, ...]
) -> ModelFunction:
    """`batch`: a number, or a name for any."""
    trees = _trees(model.params.shapes, model.statistics.shapes)
    shapes, structure = by_name(trees), jax.tree.structure(trees)

    def call(parameters: dict[str, jax.Array], inputs: Any) -> dict[str, jax.Array]:
        rebuilt = jax.tree.unflatten(structure, [parameters[name] for name in shapes])
        return model.task.exported(model.infer(rebuilt["params"], rebuilt["batch_stats"], inputs))

    (size,) = jax.export.symbolic_shape(str(batch))

    def of_input(shape: tuple[int, ...], kind: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size, *shape), kind)

    layout = model.layouts[0]
    several = {name: of_input(shape, np.dtype(kind)) for name, shape, kind in layout}
    inputs = several or of_input(model.input_shape, model.input_dtype)
    exported = jax.export.export(jax.jit(call), platforms=platforms)(shapes, inputs)
    outputs = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    about = {
        "model": model.name,
        "input": {name: {"shape": [batch, *shape], "dtype": kind} for name, shape, kind in layout}
        or {"shape": [batch, *model.input_shape], "dtype": str(model.input_dtype)}
        | ({"range": [0, 1]} if model.input_dtype == jnp.float32 else {}),
        "outputs": {
            name: {"shape": [batch, *map(int, output.shape[1:])], "dtype": str(output.dtype)}
            for name, output in outputs.items()
        },
        "platforms": platforms,
        "labels": label_names,
    }
    json.dumps(about)  # fails now, if ever
    return ModelFunction(bytes(exported.serialize()), about)


def _trees(params: PyTree, statistics: PyTree) -> dict[str, PyTree]:
    return {"params": params, "batch_stats": statistics}


def summary(error: Exception | None) -> str:
    """Type and first line of an error."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """A loaded model; `about` is the content of model.json."""

    about: dict[str, Any]
    function: jax.export.Exported
    parameters: dict[str, NDArray[Any]]

    @property
    def inputs(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and type of each array of an example, by name; of the only one by "inputs"."""
        given = self.about["input"]
        arrays = {"inputs": given} if isinstance(given.get("dtype"), str) else given
        return {name: (tuple(array["shape"][1:]), np.dtype(array["dtype"])) for name, array in arrays.items()}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example, of one array."""
        return self.inputs["inputs"][0]

    @property
    def input_dtype(self) -> np.dtype[Any]:
        return self.inputs["inputs"][1]

    def __call__(self, inputs: Any) -> dict[str, jax.Array]:
        """inputs [B, ...], or a dict of them -> the exported outputs, [B, ...], such as logits and probabilities.

        B is any number, also if the model's is fixed.
        """
        given = self.about["input"]
        size = (given if "shape" in given else next(iter(given.values())))["shape"][0]
        if size == "B":
            outputs: dict[str, jax.Array] = self.function.call(self.parameters, inputs)
            return outputs
        pieces = []
        for start in range(0, len(jax.tree.leaves(inputs)[0]), size):
            piece = jax.tree.map(lambda array, start=start: array[start : start + size], inputs)
            count = len(jax.tree.leaves(piece)[0])
            padded = jax.tree.map(
                lambda array, count=count: np.concatenate([array, np.repeat(array[-1:], size - count, axis=0)]), piece
            )
            called = self.function.call(self.parameters, padded)
            pieces.append({name: value[:count] for name, value in called.items()})
        return {name: jnp.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def load(url: str) -> SavedModel:
    """Load the model of a directory, on a path or gs://.

    Raises:
        FileNotFoundError: there is no model.
        ValueError: a file does not match its hash.
    """
    folder = open_folder(url)
    about_json = folder.read(METADATA)
    if about_json is None:
        raise FileNotFoundError(f"there is no model in {folder.url}")
    about = json.loads(about_json)
    contents = []
    for key, sha256 in (("function", "function_sha256"), ("parameters", "parameters_file_sha256")):
        data = folder.read(about[key])
        if data is None:
            raise FileNotFoundError(f"{folder.url}/{about[key]} is missing")
        if _sha256(data) != about[sha256]:
            raise ValueError(f"{folder.url}/{about[key]} is damaged")
        contents.append(data)
    function, parameters = contents
    return SavedModel(about, jax.export.deserialize(bytearray(function)), tensors.arrays(parameters))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
