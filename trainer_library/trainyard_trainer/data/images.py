"""Images: decoding JPEG and PNG, and folders of them with a subfolder for each class (ROOT/CLASS/NAME.jpg)."""

import io
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard_trainer.errors import FileError
from trainyard_trainer.storage import BUCKET_THREADS, Folder, open_folder

_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
_IN_CLASS = re.compile(r"[^/.][^/]*/[^/.][^/]*\.(jpe?g|png)", re.IGNORECASE)


class InvalidImage(ValueError):
    """A JPEG or PNG that cannot be used; the message is written to follow the image's name."""


def is_image(content: bytes) -> bool:
    """Whether the bytes begin like a JPEG or PNG."""
    return content.startswith(_STARTS)


def decode_image(content: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The pixels of a JPEG or PNG, converted and resized to (height, width) or (height, width, channels)."""
    channels = shape[2] if len(shape) == 3 else 1
    mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels)
    if len(shape) not in (2, 3) or mode is None:
        raise InvalidImage(
            f"is an image, which does not fit the input shape {shape}; allowed are (height, width) and (height,"
            " width, channels) with 1, 3 or 4 channels."
        )
    from PIL import Image  # optional: needed for images only

    height, width = shape[:2]
    try:
        image: Any = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
        if image.format == "JPEG":
            # Decodes at a half, a quarter or an eighth where that is enough.
            image.draft(mode, (width, height))
        if image.mode.startswith("I"):  # 16 bits per pixel; `convert` would clip instead of scaling
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        image = image.convert(mode)
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(image, np.uint8).reshape(shape)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidImage(f"is a JPEG or PNG that cannot be decoded: {error}.") from error


def is_image_folder(url: str) -> bool:
    """Whether the folder has images in subfolders."""
    return any(map(_IN_CLASS.fullmatch, open_folder(url).walk()))


class ImageFolder:
    """The images of a folder, by class and name. The classes are the sorted names of the subfolders with images.

    Each image is read when it is needed, also from a bucket.
    """

    in_memory = False
    label_names: tuple[str, ...] | None

    def __init__(self, url: str, input_shape: tuple[int, ...]) -> None:
        self.url = url
        self._input_shape = input_shape
        self._folder: Folder = open_folder(url)
        self._names = sorted(filter(_IN_CLASS.fullmatch, self._folder.walk()))
        if not self._names:
            raise FileError(f"{url} has no images. Allowed are JPEG and PNG files as {url}CLASS/NAME.jpg.")
        classes = [name.partition("/")[0] for name in self._names]
        self.label_names = tuple(sorted(set(classes)))
        numbers = {name: number for number, name in enumerate(self.label_names)}
        self._labels = np.array([numbers[name] for name in classes], np.int32)
        self._threads = BUCKET_THREADS if url.startswith("gs://") else 1

    def __len__(self) -> int:
        return len(self._names)

    def rows(self, indices: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        inputs = np.empty((len(indices), *self._input_shape), np.uint8)
        if self._threads == 1 or len(indices) < 2:
            for row, index in enumerate(indices):
                inputs[row] = self._pixels(index)
        else:
            with ThreadPoolExecutor(min(self._threads, len(indices))) as threads:
                for row, pixels in enumerate(threads.map(self._pixels, indices)):
                    inputs[row] = pixels
        return inputs, self._labels[indices]

    def encoded(self, index: int) -> tuple[bytes, int]:
        """The file's content and its label."""
        content = self._folder.read(self._names[index])
        if content is None:
            raise FileError(f"{self.url}{self._names[index]} is not there any more.")
        return content, int(self._labels[index])

    def _pixels(self, index: int) -> NDArray[np.uint8]:
        content, _ = self.encoded(index)
        try:
            return decode_image(content, self._input_shape)
        except InvalidImage as error:
            raise FileError(f"{self.url}{self._names[index]} {error}") from error
