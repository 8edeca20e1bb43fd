"""The part of pip's output that a user should see."""

import re

_MAX_LINES = 8
_MAX_CHARACTERS = 2000
_NOISE = re.compile(
    r"(note:|hint:|warning:|\[notice\]|\[end of output\]|deprecation:"
    r"|looking in (indexes|links):|processing |requirement already satisfied)",
    re.IGNORECASE,
)
_ERROR = re.compile(r"error:", re.IGNORECASE)


def error_excerpt(output: str) -> str:
    """The lines that explain a failure: from pip's first error on, or else the last ones."""
    lines = [line.strip() for line in output.splitlines()]
    relevant = [line for line in lines if line and not _NOISE.match(line)]
    first_error = next((n for n, line in enumerate(relevant) if _ERROR.match(line)), 0)
    return "\n".join(relevant[first_error:][-_MAX_LINES:])[-_MAX_CHARACTERS:] or "pip gave no reason."
