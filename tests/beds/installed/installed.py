"""Distributions of the project's extras, in the environment that these tests run with."""

from collections.abc import Iterator
from importlib import metadata
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement


def requirements(own: Distribution, extra: str) -> Iterator[Distribution]:
    """The distributions that `own[extra]` requires, without itself."""
    seen: set[tuple[str, str]] = set()
    missing = [(line, extra) for line in own.requires or ()]
    while missing:
        line, extra = missing.pop()
        need = Requirement(line)
        if need.marker is not None and not need.marker.evaluate({"extra": extra}):
            continue
        distribution = own if need.name == own.name else metadata.distribution(need.name)
        if distribution is not own:
            yield distribution
        for inner in {(need.name, extra) for extra in ("", *need.extras)} - seen:
            seen.add(inner)
            missing += [(line, inner[1]) for line in distribution.requires or ()]


def top_levels(distribution: Distribution) -> dict[str, Path]:
    """Its modules, packages and metadata by name."""
    names = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    return {name: Path(str(distribution.locate_file(name))) for name in names}
