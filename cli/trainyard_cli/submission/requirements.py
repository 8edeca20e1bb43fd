"""Requirements of a program: a requirements.txt as the dependencies of the package that is built.

Lines are as pip reads them. An option of pip cannot become a dependency and is refused with its line: the agent's own
pip installs the packages.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainyard_protocol.errors import InvalidArgument

FILE = "requirements.txt"

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"(?:~=|===?|!=|<=?|>=?)\s*[A-Za-z0-9.*+!_-]+"
_REQUIREMENT = re.compile(
    rf"{_NAME}\s*(?:\[[A-Za-z0-9._, -]*\]\s*)?(?:@\s*\S+\s*|\(?\s*(?:{_VERSION}\s*,?\s*)*\)?\s*)(?:;.+)?"
)
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_INCLUDE = re.compile(r"(?:-r|--requirement)[\s=]*(\S+)")
_MAX_BYTES = 2**20

_REFUSED = (
    (re.compile(r"-c|--constraint"), "is a file of constraints. Write the versions into the requirements."),
    (
        re.compile(r"-e|--editable"),
        "is an editable install, which works on this machine only. Give the directory with --package-path, or "
        "a built package with --packages.",
    ),
    (
        re.compile(r"-"),
        "is an option of pip. Set it where the agent runs, such as PIP_INDEX_URL in its environment, and remove "
        "it here.",
    ),
    (
        re.compile(r".*\s--"),
        "has an option of pip (such as --hash), which a dependency of a package cannot have. Remove the option.",
    ),
    (
        re.compile(r"[a-z+]+://|git\+|\.{0,2}/|[^@]*\.(whl|tar\.gz|zip)$"),
        "is an address without a name. Write NAME @ ADDRESS, or give the package with --packages.",
    ),
)


def beside(*directories: Path) -> Path | None:
    """The first requirements.txt in these directories."""
    return next((directory / FILE for directory in directories if (directory / FILE).is_file()), None)


def read(path: Path) -> tuple[str, ...]:
    """The requirements of a file and those it includes, in order. Raises InvalidArgument with file and line."""
    return tuple(dict.fromkeys(_read(path, ())))


def check(requirement: str, location: str) -> str:
    """The requirement, if a package can depend on it. Raises InvalidArgument, which begins with `location`."""
    for pattern, problem in _REFUSED:
        if pattern.match(requirement):
            raise InvalidArgument(f"{location}: `{requirement}` {problem}")
    if not _REQUIREMENT.fullmatch(requirement):
        raise InvalidArgument(
            f"{location}: `{requirement}` is not a requirement; one looks like numpy, numpy>=2.0 or numpy==2.1.3."
        )
    return requirement


def _read(path: Path, including: Sequence[Path]) -> Iterator[str]:
    if path in including:
        raise InvalidArgument(f"{path}: includes itself.")
    for number, line in _lines(path):
        if include := _INCLUDE.fullmatch(line):
            yield from _read((path.parent / include[1]).resolve(), (*including, path))
        else:
            yield check(line, f"{path}:{number}")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines without comments; one that ends in a backslash goes on. Each with its first number."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1).decode("utf-8-sig")
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: is not UTF-8 text.") from error
    if len(text) > _MAX_BYTES:
        raise InvalidArgument(f"{path}: is larger than 1 MiB. Is this a list of requirements?")
    begun, parts = 0, []
    for number, raw in enumerate(text.splitlines(), 1):
        begun = begun or number
        line = _COMMENT.sub("", raw).strip()
        parts.append(line.removesuffix("\\").strip())
        if not line.endswith("\\"):
            if joined := " ".join(filter(None, parts)):
                yield begun, joined
            begun, parts = 0, []
    if joined := " ".join(filter(None, parts)):
        yield begun, joined
