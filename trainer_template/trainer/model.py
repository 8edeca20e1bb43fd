"""The model: a small convolutional network.

A name ends in its tensor's shape: B batch, H height, W width, C channels, F features, K classes.
"""

from collections.abc import Sequence

import jax
from flax import linen as nn


class Cnn(nn.Module):
    """3x3 convolutions, each after the first halving height and width, then two dense layers.

    Attributes:
        channels: output channels of each convolution.
        hidden: width of the hidden dense layer.
        classes: number of labels.
    """

    channels: Sequence[int] = (32, 64)
    hidden: int = 128
    classes: int = 10

    @nn.compact
    def __call__(self, images_BHWC: jax.Array) -> jax.Array:
        """Images with values in [0, 1] -> logits [B, K]."""
        x_BHWC = images_BHWC
        for number, channels in enumerate(self.channels):
            stride = 2 if number else 1
            x_BHWC = nn.relu(nn.Conv(channels, kernel_size=(3, 3), strides=(stride, stride))(x_BHWC))
        x_BF = x_BHWC.reshape(x_BHWC.shape[0], -1)
        x_BF = nn.relu(nn.Dense(self.hidden)(x_BF))
        logits_BK: jax.Array = nn.Dense(self.classes)(x_BF)
        return logits_BK
