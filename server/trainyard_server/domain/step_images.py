"""Images that a job has written step by step, found by their names. Pure.

images/samples/120.png          samples, as `trainyard.wandb` writes them
samples-000120.png              samples
step_120/samples.png            samples
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

IMAGE_TYPES: Mapping[str, str] = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "svg": "image/svg+xml",
}
"""Media types of images by the ends of their names."""

MAX_GROUPS = 24
MAX_IMAGES = 1000  # of a group: those of the highest steps

_WORD = r"(?:steps?|global[-_]?step|iter(?:ation)?|epoch|checkpoint|ckpt)"
_DIRECTORY = re.compile(rf"{_WORD}[-_=.]?(\d{{1,15}})", re.IGNORECASE)
_FILE = re.compile(rf"(?:(?P<name>.*?)[-_.=])??(?:{_WORD}[-_=.]?)?(?P<step>\d{{1,15}})", re.IGNORECASE | re.DOTALL)
_LONGEST_NAME = 255


@dataclass(frozen=True, slots=True)
class StepImages:
    """Images of one name, by increasing steps: `paths` are relative to the job-dir."""

    name: str
    steps: tuple[int, ...]
    paths: tuple[str, ...]


def image_type(name: str) -> str:
    """The media type of an image by its name; "" for another file."""
    return IMAGE_TYPES.get(name.rpartition(".")[2].lower(), "") if "." in name else ""


def step_images(paths: Iterable[tuple[str, ...]]) -> tuple[StepImages, ...]:
    """The groups of at least two images that differ in their step, by name."""
    groups: dict[tuple[str, ...], dict[int, tuple[str, ...]]] = {}
    for path in paths:
        if image_type(path[-1]) and (place := _place(path)) is not None:
            group, step = place
            groups.setdefault(group, {})[step] = path
    made = []
    for group, images in sorted(groups.items()):
        chosen = sorted(images.items())[-MAX_IMAGES:]
        if len(chosen) > 1:
            steps, members = zip(*chosen, strict=True)
            made.append(StepImages(_name(group), steps, tuple("/".join(path) for path in members)))
    return tuple(made[:MAX_GROUPS])


def _place(path: tuple[str, ...]) -> tuple[tuple[str, ...], int] | None:
    """The group of an image and its step; None for an image without a step. In a group `*` stands for the step."""
    stem, _, kind = path[-1].rpartition(".")
    for number in reversed(range(len(path) - 1)):
        if match := _DIRECTORY.fullmatch(path[number]):
            return (*path[:number], "*", *path[number + 1 : -1], stem, f"*.{kind}"), int(match[1])
    match = _FILE.fullmatch(stem) if len(stem) <= _LONGEST_NAME else None
    if match is None:
        return None
    return (*path[:-1], *([match["name"]] if match["name"] else []), f"*.{kind}"), int(match["step"])


def _name(group: tuple[str, ...]) -> str:
    """`images/samples/*.png` is `samples`: what is the same for all images is left out."""
    parts = [part for part in group if part != "*" and not part.startswith("*.")]
    if len(parts) > 1 and parts[0] == "images":
        del parts[0]
    return "/".join(parts) or "images"
