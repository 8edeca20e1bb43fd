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
"""

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from trainer.storage import open_folder

if TYPE_CHECKING:
    from trainer.models.model import Model
    from trainer.state import State

PyTree = Any

PLATFORMS = ("cpu", "cuda", "tpu")
METADATA = "model.json"


def export(
    model: "Model", state: "State", label_names: tuple[str, ...], facts: dict[str, Any]
) -> dict[str, bytes]:
    """File name -> content; model.json, which refers to the others, is last.

    Args:
        state: on the host.
        facts: further entries of model.json.
    """
    trees = {"params": state.params, "batch_stats": model.statistics.unravel(state.statistics)}
    leaves, structure = jax.tree_util.tree_flatten_with_path(trees)
    parameters = {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.ascontiguousarray(leaf, np.float32)
        for path, leaf in leaves
    }

    def call(by_name: dict[str, jax.Array], inputs: jax.Array) -> dict[str, jax.Array]:
        rebuilt = jax.tree.unflatten(structure, [by_name[name] for name in parameters])
        return model.task.exported(model.infer(rebuilt["params"], rebuilt["batch_stats"], inputs))

    batch = jax.export.symbolic_shape("B, " + ", ".join(map(str, model.input_shape)))
    exported = jax.export.export(jax.jit(call), platforms=PLATFORMS)(
        {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in parameters.items()},
        jax.ShapeDtypeStruct(batch, model.input_dtype),
    )
    outputs = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    function_data, parameters_data = bytes(exported.serialize()), safetensors.numpy.save(parameters)
    function_sha256, parameters_sha256 = _sha256(function_data), _sha256(parameters_data)
    function_name = f"function-{function_sha256[:8]}.jax"
    parameters_name = f"parameters-{parameters_sha256[:8]}.safetensors"
    about = {
        "model": model.name,
        "input": {"shape": ["B", *model.input_shape], "dtype": str(model.input_dtype)}
        | ({"range": [0, 1]} if model.input_dtype == jnp.float32 else {}),
        "outputs": {
            name: {"shape": ["B", *output.shape[1:]], "dtype": str(output.dtype)} for name, output in outputs.items()
        },
        "labels": label_names,
        **facts,
        "function": function_name,
        "function_sha256": function_sha256,
        "parameters": parameters_name,
        "parameters_file_sha256": parameters_sha256,
        "jax": jax.__version__,
    }  # fmt: skip
    return {
        function_name: function_data,
        parameters_name: parameters_data,
        METADATA: json.dumps(about, indent=2).encode() + b"\n",
    }


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """A loaded model; `about` is the content of model.json."""

    about: dict[str, Any]
    function: jax.export.Exported
    parameters: dict[str, NDArray[np.float32]]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.about["input"]["shape"][1:])

    @property
    def input_dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(self.about["input"]["dtype"])
        return dtype

    def __call__(self, inputs: NDArray[Any]) -> dict[str, jax.Array]:
        """inputs [B, ...] -> logits and probabilities, [B, ..., K]."""
        outputs: dict[str, jax.Array] = self.function.call(self.parameters, inputs)
        return outputs


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
    return SavedModel(about, jax.export.deserialize(bytearray(function)), safetensors.numpy.load(parameters))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
