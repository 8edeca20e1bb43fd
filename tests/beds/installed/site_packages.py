"""Packages that this interpreter has installed, for images of the tests: nothing is downloaded into them."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

DEBIAN = "/usr/local/lib/python3.11/dist-packages/"
"""The directory in which Debian's interpreter finds packages."""


def files(name: str) -> dict[str, bytes]:
    """The files of a distribution and of all that it requires, by path below `site`, without tests. Bytecode is there
    too: in a container that may not write, each program compiles all its modules otherwise, for minutes."""
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
            if not {"tests", ".."} & set(path.parts) and (file := Path(str(path.locate()))).exists():
                found[f"site/{path}"] = _content(file)
    return found


def _content(file: Path) -> bytes:
    """Bytecode as it is valid whatever the time of its source (PEP 552, unchecked hash); others as they are."""
    content = file.read_bytes()
    return content[:4] + b"\1\0\0\0" + bytes(8) + content[16:] if file.suffix == ".pyc" else content


def _is_wanted(requirement: Requirement, extras: Iterable[str]) -> bool:
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))
