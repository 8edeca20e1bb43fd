"""Images that the jobs of a project may bring. Pure.

Names are compared as a container engine reads them: `ubuntu` is `docker.io/library/ubuntu:latest`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

_NAME = re.compile(
    r"(?:(?P<registry>(?:[A-Za-z0-9-]+\.)*[A-Za-z0-9-]+(?::[0-9]+)?)/)??"
    r"(?P<path>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?"
)
_IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{1,64}")
_HUB = "docker.io"  # or index.docker.io


@dataclass(frozen=True, slots=True)
class AllowedImages:
    """Patterns by project; None allows every image. `default` holds for projects that are not listed."""

    default: Sequence[str] | None = None
    projects: Mapping[str, Sequence[str] | None] = field(default_factory=dict)

    def refusal(self, project: str, image: str) -> str:
        """The reason why jobs of the project may not bring the image, with what is allowed; "" if they may."""
        patterns = self.projects.get(project, self.default)
        if patterns is None:
            return ""
        if _IMAGE_ID.fullmatch(image):  # an engine takes it for any image that it has
            return (
                f"{image} may be the id of any image; give its name with a tag, such as {image[:20]}:latest."
            )
        if any(_matches(pattern, image) for pattern in patterns):
            return ""
        allowed = f"allowed are {', '.join(patterns)}" if patterns else "no image is"
        return f"{image} is not an image that jobs of project {project} may bring; {allowed}."


def _matches(pattern: str, image: str) -> bool:
    """Whether the pattern matches the image. One without a tag or digest matches every tag and digest."""
    match = _NAME.fullmatch(image)
    if match is None:
        return False
    repository = _with_registry(image[: match.end("path")])
    version = f"{match['tag'] or ''}{match['digest'] or ''}" or ":latest"
    has_version = re.search(r"[:@]", pattern.rpartition("/")[2])
    return fnmatchcase(f"{repository}{version}" if has_version else repository, _with_registry(pattern))


def _with_registry(name: str) -> str:
    first, slash, rest = name.partition("/")
    if (
        name == "*"
        or (slash and set(first) & set(".:*") and not first.endswith(_HUB))
        or first == "localhost"
    ):
        return name
    path = rest if first.endswith(_HUB) else name
    return f"{_HUB}/{path}" if "/" in path else f"{_HUB}/library/{path}"
