"""A small convolutional network for 8x8 digits.

A name ends in its tensor's shape: B batch, H height, W width, C channels, F features, K classes.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike


class Cnn(nn.Module):
    """3x3 convolutions (stride 2 from the second on), then two dense layers.

    Attributes:
        classes: number of labels.
        channels: output channels of each convolution.
        hidden: width of the hidden dense layer.
        dtype: of the computation; parameters are float32.
    """

    classes: int
    channels: Sequence[int] = (32, 64)
    hidden: int = 128
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images_BHWC: jax.Array, train: bool) -> jax.Array:  # noqa: ARG002 - the signature of every model
        """Images with values in [0, 1] -> logits [B, K]."""
        x_BHWC = images_BHWC
        for number, channels in enumerate(self.channels):
            stride = 2 if number else 1
            conv = nn.Conv(channels, kernel_size=(3, 3), strides=(stride, stride), dtype=self.dtype)
            x_BHWC = nn.relu(conv(x_BHWC))
        x_BF = x_BHWC.reshape(x_BHWC.shape[0], -1)
        x_BF = nn.relu(nn.Dense(self.hidden, dtype=self.dtype)(x_BF))
        logits_BK: jax.Array = nn.Dense(self.classes, dtype=self.dtype)(x_BF)
        return logits_BK
