"""ResNet-50: He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385, table 1.

This is "v1.5": the stride of a stage is in its 3x3 convolution, and the last scale of a block starts at 0 (Goyal
et al., arXiv:1706.02677). A name ends in its tensor's shape: B batch, H height, W width, C channels, K classes.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a residual connection, projected where the shape changes."""

    channels: int
    stride: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x_BHWC: jax.Array, train: bool) -> jax.Array:
        conv = partial(nn.Conv, use_bias=False, dtype=self.dtype)
        # Each replica normalizes by its own examples; running means, used in evaluation, are averaged over replicas.
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, dtype=self.dtype)
        strides = (self.stride, self.stride)
        y_BHWC = nn.relu(norm()(conv(self.channels, (1, 1))(x_BHWC)))
        y_BHWC = nn.relu(norm()(conv(self.channels, (3, 3), strides)(y_BHWC)))
        y_BHWC = norm(scale_init=nn.initializers.zeros)(conv(4 * self.channels, (1, 1))(y_BHWC))
        if x_BHWC.shape != y_BHWC.shape:
            x_BHWC = norm()(conv(4 * self.channels, (1, 1), strides)(x_BHWC))
        out_BHWC: jax.Array = nn.relu(x_BHWC + y_BHWC)
        return out_BHWC


class ResNet(nn.Module):
    """ResNet; the defaults are ResNet-50 with 25.6 million parameters for 1000 classes.

    Attributes:
        classes: number of labels.
        blocks: number of blocks in each stage; each stage halves height and width and doubles the channels.
        channels: inner channels of the first stage.
        dtype: of the computation; parameters are float32.
    """

    classes: int
    blocks: Sequence[int] = (3, 4, 6, 3)
    channels: int = 64
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images_BHWC: jax.Array, train: bool) -> jax.Array:
        """Images with values in [0, 1] -> logits [B, K]."""
        x_BHWC = 2 * images_BHWC - 1
        x_BHWC = nn.Conv(self.channels, (7, 7), (2, 2), use_bias=False, dtype=self.dtype)(x_BHWC)
        x_BHWC = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9, dtype=self.dtype)(x_BHWC))
        x_BHWC = nn.max_pool(x_BHWC, (3, 3), (2, 2), padding="SAME")
        for stage, blocks in enumerate(self.blocks):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                x_BHWC = Bottleneck(self.channels * 2**stage, stride, self.dtype)(x_BHWC, train)
        x_BC = x_BHWC.mean(axis=(1, 2))
        logits_BK: jax.Array = nn.Dense(self.classes, dtype=self.dtype)(x_BC)
        return logits_BK
