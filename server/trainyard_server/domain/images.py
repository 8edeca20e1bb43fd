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
_HUB, _OLD_HUB = "docker.io", "index.docker.io"


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
            return f"{image} may be the id of any image; give its name with a tag, such as {image[:20]}:latest."
        if any(_matches(pattern, image) for pattern in patterns):
            return ""
        allowed = f"allowed are {', '.join(patterns)}" if patterns else "no image is"
        return f"{image} is not an image that jobs of project {project} may bring; {allowed}."


@dataclass(frozen=True, slots=True)
class _Reference:
    """An image's name, or a pattern of one, in parts. `version` is `:TAG` or `@DIGEST`, "" for none."""

    registry: str
    path: str
    version: str


def _matches(pattern: str, image: str) -> bool:
    """Whether the pattern matches the image. One without a tag or digest matches every tag and digest. Each part is
    compared by itself, so that `*` of a registry does not reach into the path."""
    if _NAME.fullmatch(image) is None:
        return False
    if pattern == "*":
        return True
    allowed, named = _parsed(pattern), _parsed(image)
    return (
        fnmatchcase(named.registry, allowed.registry)
        and fnmatchcase(named.path, allowed.path)
        and (not allowed.version or fnmatchcase(named.version or ":latest", allowed.version))
    )


def _parsed(name: str) -> _Reference:
    first, slash, rest = name.partition("/")
    # What engines take for a registry, and `*` in a pattern.
    has_registry = slash and (first in ("*", "localhost") or set(first) & set(".:") or first != first.lower())
    registry, rest = (first, rest) if has_registry else (_HUB, name)
    registry = _HUB if registry == _OLD_HUB else registry
    tagged, at, digest = rest.partition("@")
    path = tagged.partition(":")[0]
    version = f"@{digest}" if at else tagged[len(path) :]  # engines ignore a tag beside a digest
    if registry == _HUB and "/" not in path:
        path = f"library/{path}"
    return _Reference(registry, path, version)
