"""Parameters of an earlier training: --init-from.

It names a job directory, with an exported model or checkpoints, a safetensors file, or a folder of Hugging Face's, on a
path or gs://... A name is that of the parameter in the network, such as Dense_0/kernel; Hugging Face's names of a GPT-2
are translated.
"""

import json
import logging
import re
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.errors import CheckpointError
from trainyard_trainer.models import gpt2
from trainyard_trainer.models.model import FlatTree
from trainyard_trainer.models.names import by_name
from trainyard_trainer.output import tensors
from trainyard_trainer.output.export import METADATA
from trainyard_trainer.output.saving import Saver
from trainyard_trainer.storage import Folder, StoredFile, open_folder

PyTree = Any
Arrays = dict[str, NDArray[Any]]

log = logging.getLogger("trainer")

ALLOWED = (
    "Allowed are a safetensors file, a folder of Hugging Face's with model.safetensors or model.safetensors.index.json,"
    " and a job-dir with a model or checkpoints; on a path or gs://..."
)
_INDEX = "model.safetensors.index.json"
_OTHERS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "flax_model.msgpack", "tf_model.h5")
_PREFIXES = re.compile(r"^(?:params/|batch_stats/)?(?:base/)?")
_NAMED = 3  # of all that are missing, in a message
_EMBEDDING = re.compile(r"Embed_0/embedding .* \(there")
_ATTENTION = "Block_0/MultiHeadDotProductAttention_0/query/kernel"


class _Stored(NamedTuple):
    """The safetensors of a model: files of one folder."""

    folder: Folder
    names: tuple[str, ...]


def load(url: str, trees: PyTree, skip: str | None) -> Arrays:
    """The values for the leaves of {"params", "batch_stats"}, by their names.

    Args:
        trees: of `jax.ShapeDtypeStruct`s. Matrices of --lora are new.
        skip: a regular expression for parameters that begin as if there were no file.

    Raises:
        CheckpointError: there is no such file, it cannot be read, or it does not have a parameter of this shape.
    """
    leaves = {name: leaf for name, leaf in by_name(trees).items() if not _key(name).startswith("lora/")}
    there = {_key(name): array for name, array in _read(url, trees, leaves).items()}
    found, missing = {}, []
    for name, leaf in leaves.items():
        key = _key(name)
        if skip and re.search(skip, key):
            continue
        array = there.get(key)
        if array is None or array.shape != leaf.shape:
            shape = "" if array is None else f" (there {list(array.shape)})"
            missing.append(f"{key} {list(leaf.shape)}{shape}")
        elif not jnp.issubdtype(array.dtype, jnp.floating):
            raise CheckpointError(f"--init-from {url} has {key} as {array.dtype}; allowed are floating-point numbers.")
        else:
            found[name] = np.asarray(array, np.float32)
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        vocabulary = "Give the --tokenizer of these embeddings. " if any(map(_EMBEDDING.match, missing)) else ""
        raise CheckpointError(
            f"--init-from {url} does not have {', '.join(missing[:_NAMED])}{more}; it has "
            f"{', '.join(list(there)[:_NAMED])} and so on. {vocabulary}Name what is to be new by --init-skip REGEX."
        )
    if unused := sorted(there.keys() - {_key(name) for name in leaves}):
        more = f" and {len(unused) - _NAMED} more" if len(unused) > _NAMED else ""
        log.warning("--init-from %s: the network does not have %s%s.", url, ", ".join(unused[:_NAMED]), more)
    return found


def gpt2_sizes(url: str) -> gpt2.Sizes:
    """The sizes of the GPT-2 that is there; of the smallest, if there is none.

    Raises:
        CheckpointError: there is no such file, it cannot be read, or it is of a model that computes otherwise.
    """
    stored = _find(url)
    if stored is None:
        shapes = {name: array.shape for name, array in _newest(url, None).items()}
        config = None
    else:
        shapes = {}
        for name in stored.names:
            shapes |= _shapes(url, stored.folder, name)
        config = stored.folder.read("config.json")
    try:
        sizes = gpt2.sizes({_key(name): shape for name, shape in shapes.items()}, config)
    except gpt2.UnsupportedError as error:
        raise CheckpointError(f"--init-from {url} {error}.") from error
    return sizes or gpt2.Sizes()


def _read(url: str, trees: PyTree, leaves: dict[str, Any]) -> Arrays:
    stored = _find(url)
    if stored is None:
        return _newest(url, trees)
    arrays: Arrays = {}
    for name in stored.names:
        _shapes(url, stored.folder, name)  # before all of a large file is read
        content = stored.folder.read(name)
        try:
            arrays |= tensors.arrays(content or b"")
        except tensors.NotSafetensorsError as error:
            raise _unreadable(url, name, error) from error
    if not gpt2.is_of_hugging_face(arrays):
        return arrays
    query = next((leaf for name, leaf in leaves.items() if _key(name) == _ATTENTION), None)
    try:
        return gpt2.converted(arrays, query.shape[1] if query is not None else 1)
    except gpt2.UnsupportedError as error:
        raise CheckpointError(f"--init-from {url} {error}.") from error


def _find(url: str) -> _Stored | None:
    """The files of the model; None where there may be checkpoints.

    Raises:
        CheckpointError: an index of the files is damaged.
    """
    parent, _, name = url.rstrip("/").rpartition("/")
    beside = open_folder(parent or ("/" if url.startswith("/") else "."))
    if name and beside.stored(name) is not None:
        return _Stored(beside, (name,))
    folder = open_folder(url)
    for model in (folder.folder("model"), folder):
        about = model.read(METADATA)
        names = ["parameters.safetensors", "model.safetensors"]
        if about is not None:
            names = [str(_entry(f"{model.url}/{METADATA}", about, "parameters"))]
        for name in names:
            if about is not None or model.stored(name) is not None:
                return _Stored(model, (name,))
    index = folder.read(_INDEX)
    if index is None:
        return None
    parts = _entry(f"{folder.url}/{_INDEX}", index, "weight_map")
    if not isinstance(parts, dict) or not parts:
        raise CheckpointError(f"--init-from {folder.url}/{_INDEX} names no files. Fetch it again.")
    return _Stored(folder, tuple(sorted(set(map(str, parts.values())))))


def _entry(url: str, content: bytes, key: str) -> Any:
    try:
        return json.loads(content)[key]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"--init-from {url} is damaged: it is no JSON object with {key!r}.") from error


def _shapes(url: str, folder: Folder, name: str) -> dict[str, tuple[int, ...]]:
    file: StoredFile | None = folder.stored(name)
    if file is None:
        raise CheckpointError(f"--init-from {url}: {folder.url}/{name} is missing.")
    try:
        return tensors.shapes(file)
    except tensors.NotSafetensorsError as error:
        raise _unreadable(url, name, error) from error


def _unreadable(url: str, name: str, error: tensors.NotSafetensorsError) -> CheckpointError:
    of_folder = "" if url.rstrip("/").endswith(name) else f": {name}"
    return CheckpointError(f"--init-from {url}{of_folder} {error}. {ALLOWED}")


def _newest(url: str, trees: PyTree | None) -> Arrays:
    """The parameters of the newest checkpoint, and the statistics if there are `trees`.

    Raises:
        CheckpointError: there are no checkpoints, or all are damaged.
    """
    newest = Saver(url, 0, 1).newest()
    if newest is None:
        folder = open_folder(url)
        other = next((name for name in _OTHERS if folder.stored(name) is not None), None)
        problem = "is not there, or has no parameters"
        if other:
            problem = f"has {other} alone, which is not read. {tensors.AS_SAFETENSORS}"
        raise CheckpointError(f"--init-from {url} {problem}. {ALLOWED}")
    arrays = newest[1]
    named = {_network_name(name): array for name, array in arrays.items() if name.startswith(".params")}
    if trees is not None:
        statistics = FlatTree(trees["batch_stats"])
        if statistics.size == arrays[".statistics"].size:
            named |= by_name(statistics.unravel(arrays[".statistics"]))
    return named


def _key(name: str) -> str:
    """Dense_0/kernel, of params/base/Dense_0/kernel."""
    return _PREFIXES.sub("", name)


def _network_name(name: str) -> str:
    """Dense_0/kernel, of .params['Dense_0']['kernel']."""
    return "/".join(re.findall(r"\['?([^'\]]+)'?\]", name))
