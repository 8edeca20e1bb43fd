"""Random changes of training images: --augment.

A change depends only on the seed, the epoch and the example's number, so that a resumed training, on any number of
processes, sees the same images as an uninterrupted one.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

AREA = (0.08, 1.0)  # of a crop, as a fraction of the image
ASPECT = (3 / 4, 4 / 3)  # width to height, relative to the image's


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """The changes of one epoch.

    crop: a random part, resized to the whole ("Inception crop": Szegedy et al., arXiv:1409.4842)
    flip: half of the images are mirrored, left to right
    """

    kinds: Sequence[str]
    seed: int
    epoch: int

    def __call__(self, images: NDArray[Any], numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Images [n, H, W, C] of the examples with these numbers, changed."""
        changed = np.empty_like(images)
        for row, number in enumerate(numbers.tolist()):
            # The last word distinguishes it from the generator of the order (sharding.epoch_order).
            random = np.random.default_rng([self.seed, self.epoch, number, 1])
            image = images[row]
            if "crop" in self.kinds:
                image = _crop(image, random)
            if "flip" in self.kinds and random.random() < 0.5:
                image = image[:, ::-1]
            changed[row] = image
        return changed


def _crop(image: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    from PIL import Image  # optional: needed for images only

    height, width = image.shape[:2]
    area = random.uniform(*AREA)
    aspect = math.exp(random.uniform(*np.log(ASPECT)))
    part_width = width * min(1.0, math.sqrt(area * aspect))
    part_height = height * min(1.0, math.sqrt(area / aspect))
    left, top = random.random() * (width - part_width), random.random() * (height - part_height)
    box = (left, top, left + part_width, top + part_height)
    channels = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(image[..., channel])).resize(
                (width, height), Image.Resampling.BILINEAR, box=box
            )
        )
        for channel in range(image.shape[2])
    ]
    return np.stack(channels, axis=-1)
