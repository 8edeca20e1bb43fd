"""GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners"), and its files of Hugging Face."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from numpy.typing import NDArray

from trainyard_trainer.models.transformer import Transformer

Arrays = Mapping[str, NDArray[Any]]
Shapes = Mapping[str, tuple[int, ...]]

EPSILON = 1e-5  # of the layer normalization
_HEAD_WIDTH = 64  # of every size that was published
_CONFIG = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (EPSILON,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
"""What a config.json may have; an entry that is missing has the first value."""
_PREFIX = re.compile(r"^transformer\.")
_MASKS = re.compile(r"^h\.\d+\.attn\.(bias|masked_bias)$")
_OF_A_BLOCK = {
    "ln_1": "LayerNorm_0",
    "attn.c_proj": "MultiHeadDotProductAttention_0/out",
    "ln_2": "LayerNorm_1",
    "mlp.c_fc": "Dense_0",
    "mlp.c_proj": "Dense_1",
}
_HEAD = "lm_head.weight"


class UnsupportedError(ValueError):
    """The file is of another model. The message continues "This file ..."."""


class Sizes(NamedTuple):
    """The sizes of a GPT-2; the default is the smallest of the four, with 124 million parameters."""

    vocabulary: int = 50257
    context: int = 1024
    width: int = 768
    layers: int = 12
    heads: int = 12


def network(sizes: Sizes, classes: int, dtype: DTypeLike) -> nn.Module:
    """The network for a vocabulary of `classes` tokens."""
    return Transformer(
        classes, sizes.width, sizes.layers, sizes.heads, dtype, tied=True, context=sizes.context, epsilon=EPSILON
    )


def is_of_hugging_face(names: Iterable[str]) -> bool:
    return any(_PREFIX.sub("", name) == "wte.weight" for name in names)


def sizes(shapes: Shapes, config: bytes | None) -> Sizes | None:
    """The sizes of a file by its shapes, Hugging Face's or ours; None if it has no GPT-2.

    Args:
        config: its config.json, which has the number of heads. Without one they are 64 wide.

    Raises:
        UnsupportedError: the model of config.json computes otherwise than GPT-2.
    """
    if is_of_hugging_face(shapes):
        there = {_PREFIX.sub("", name): shape for name, shape in shapes.items()}
        embedding, positions, block = there["wte.weight"], there.get("wpe.weight", ()), r"h\.(\d+)\."
        heads = _heads(config) or max(1, embedding[-1] // _HEAD_WIDTH)
    else:
        there = dict(shapes)
        embedding, positions = there.get("Embed_0/embedding", ()), there.get("positions", ())
        block, query = r"Block_(\d+)/", there.get("Block_0/MultiHeadDotProductAttention_0/query/kernel", ())
        heads = query[1] if len(query) == 3 else 0
    numbers = [int(found[1]) for name in there if (found := re.match(block, name))]
    if len(embedding) != 2 or len(positions) != 2 or not numbers or not heads:
        return None
    return Sizes(embedding[0], positions[0], embedding[1], 1 + max(numbers), heads)


def converted(arrays: Arrays, heads: int) -> dict[str, NDArray[Any]]:
    """Hugging Face's parameters by our names and in our shapes; others keep their names. Masks are left out.

    Raises:
        UnsupportedError: the matrix of the logits is not that of the embeddings.
    """
    there = {_PREFIX.sub("", name): array for name, array in arrays.items()}
    found: dict[str, NDArray[Any]] = {}
    if _HEAD in there and not np.array_equal(there.pop(_HEAD), there["wte.weight"]):
        raise UnsupportedError(f"has a {_HEAD} that differs from wte.weight; allowed is one matrix for both")
    for name, array in there.items():
        layer, _, kind = name.rpartition(".")
        number, _, part = layer.removeprefix("h.").partition(".")
        if _MASKS.match(name):
            continue
        if name in ("wte.weight", "wpe.weight"):
            found["Embed_0/embedding" if name == "wte.weight" else "positions"] = array
        elif layer == "ln_f" or (layer.startswith("h.") and part in _OF_A_BLOCK):
            ours = "LayerNorm_0" if layer == "ln_f" else f"Block_{number}/{_OF_A_BLOCK[part]}"
            suffix = "bias" if kind == "bias" else "scale" if "LayerNorm" in ours else "kernel"
            by_head = part == "attn.c_proj" and kind == "weight"
            found[f"{ours}/{suffix}"] = _by_head(array, heads, axis=0) if by_head else array
        elif layer.startswith("h.") and part == "attn.c_attn":
            attention, suffix = f"Block_{number}/MultiHeadDotProductAttention_0", "bias" if kind == "bias" else "kernel"
            for ours, third in zip(("query", "key", "value"), np.array_split(array, 3, axis=-1), strict=True):
                found[f"{attention}/{ours}/{suffix}"] = _by_head(third, heads, axis=-1)
        else:
            found[name] = array
    return found


def _by_head(array: NDArray[Any], heads: int, axis: int) -> NDArray[Any]:
    """An axis divided into heads and what each has; unchanged where it cannot be."""
    axis %= array.ndim
    if array.shape[axis] % heads:
        return array
    return array.reshape(*array.shape[:axis], heads, -1, *array.shape[axis + 1 :])


def _heads(config: bytes | None) -> int | None:
    """The number of heads; None without a config.json."""
    if config is None:
        return None
    try:
        given = json.loads(config)
        heads = int(given.get("n_head", Sizes().heads))
        width = int(given.get("n_embd", Sizes().width))
        inner = given.get("n_inner") or 4 * width
    except (ValueError, AttributeError, TypeError) as error:
        raise UnsupportedError("has a config.json beside it that is no JSON object of a GPT-2") from error
    for key, allowed in _CONFIG.items():
        if given.get(key, allowed[0]) not in allowed:
            raise UnsupportedError(
                f"has {key} {given[key]!r} in the config.json beside it; a GPT-2 has {' or '.join(map(repr, allowed))}"
            )
    if inner != 4 * width or heads < 1 or width % heads:
        raise UnsupportedError(
            f"has n_inner {inner}, n_embd {width} and n_head {heads} in the config.json beside it; n_inner must be "
            "four times n_embd, and n_head must divide it"
        )
    return heads
