"""A small decoder-only transformer (Vaswani et al., arXiv:1706.03762) with pre-layer normalization.

A name ends in its tensor's shape: B batch, T tokens, P positions, D width, K classes (the vocabulary).
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

TENSOR_RULES = (
    (r"(query|key|value)/kernel$", PartitionSpec(None, "tensor")),
    (r"(query|key|value)/bias$", PartitionSpec("tensor")),
    (r"out/kernel$", PartitionSpec("tensor")),
    (r"Block_\d+/Dense_0/kernel$", PartitionSpec(None, "tensor")),
    (r"Block_\d+/Dense_0/bias$", PartitionSpec("tensor")),
    (r"Block_\d+/Dense_1/kernel$", PartitionSpec("tensor")),
    (r"embedding$", PartitionSpec("tensor")),
)
"""How --mesh divides it over `tensor`: heads, the wide layer of each block, and the vocabulary (Shoeybi et al.,
arXiv:1909.08053)."""


class Block(nn.Module):
    """Causal self-attention, then two dense layers at each token."""

    heads: int
    dtype: DTypeLike
    epsilon: float

    @nn.compact
    def __call__(self, x_BTD: jax.Array, mask_1TT: jax.Array) -> jax.Array:
        width = x_BTD.shape[-1]
        attention = nn.MultiHeadDotProductAttention(self.heads, dtype=self.dtype)
        x_BTD = x_BTD + attention(nn.LayerNorm(self.epsilon, dtype=self.dtype)(x_BTD), mask=mask_1TT)
        normalized_BTD = nn.LayerNorm(self.epsilon, dtype=self.dtype)(x_BTD)
        hidden = nn.gelu(nn.Dense(4 * width, dtype=self.dtype)(normalized_BTD), approximate=True)
        out_BTD: jax.Array = x_BTD + nn.Dense(width, dtype=self.dtype)(hidden)
        return out_BTD


class Transformer(nn.Module):
    """Predicts the next token at each position.

    Attributes:
        classes: size of the vocabulary; 256 for bytes.
        width: of the embeddings.
        layers, heads: number of each.
        dtype: of the computation; parameters are float32.
        tied: the embeddings are also the matrix of the logits.
        context: the number of learned positions, which tokens may be fewer than; 0: as many as the tokens.
        epsilon: of the layer normalization.
    """

    classes: int
    width: int = 128
    layers: int = 4
    heads: int = 4
    dtype: DTypeLike = jnp.float32
    tied: bool = False
    context: int = 0
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, tokens_BT: jax.Array, train: bool) -> jax.Array:  # noqa: ARG002 - the signature of every model
        """Tokens [B, T] -> logits [B, T, K] of the next tokens."""
        length = tokens_BT.shape[1]
        positions_PD = self.param("positions", nn.initializers.normal(0.02), (self.context or length, self.width))
        scale = nn.initializers.normal(0.02) if self.tied else nn.linear.default_embed_init
        embed = nn.Embed(self.classes, self.width, dtype=self.dtype, embedding_init=scale)
        x_BTD = embed(tokens_BT) + positions_PD[:length].astype(self.dtype)
        mask_1TT = nn.make_causal_mask(tokens_BT[:1])
        for _ in range(self.layers):
            x_BTD = Block(self.heads, self.dtype, self.epsilon)(x_BTD, mask_1TT)
        x_BTD = nn.LayerNorm(self.epsilon, dtype=self.dtype)(x_BTD)
        logits_BTK: jax.Array = embed.attend(x_BTD) if self.tied else nn.Dense(self.classes, dtype=self.dtype)(x_BTD)
        return logits_BTK
