"""Packages that this interpreter has installed, for images of the tests: nothing is downloaded into them."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

DEBIAN = "/usr/local/lib/python3.11/dist-packages/"
"""The directory in which Debian's interpreter finds packages."""


def files(name: str) -> dict[str, bytes]:
    """The files of a distribution and of all that it requires, by path below `site`, without tests and bytecode."""
    found: dict[str, bytes] = {}
    wanted, seen = [Requirement(name)], set()
    while wanted:
        if str(requirement := wanted.pop()) in seen:
            continue
        seen.add(str(requirement))
        try:
            installed = distribution(requirement.name)
        except PackageNotFoundError:  # for another Python or system
            continue
        needed = [Requirement(text) for text in installed.requires or ()]
        wanted += [other for other in needed if _is_wanted(other, requirement.extras)]
        for path in installed.files or ():
            if not {"tests", "__pycache__", ".."} & set(path.parts):
                found[f"site/{path}"] = Path(str(path.locate())).read_bytes()
    return found


def _is_wanted(requirement: Requirement, extras: Iterable[str]) -> bool:
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))
