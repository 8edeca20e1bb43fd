"""What of pip's output a user should see."""

import re

_TOLD_LINES = 8
_TOLD_CHARACTERS = 2000
_NOT_TELLING = re.compile(
    r"(note:|hint:|warning:|\[notice\]|\[end of output\]|deprecation:"
    r"|looking in (indexes|links):|processing |requirement already satisfied)",
    re.IGNORECASE,
)
_COMPLAINT = re.compile(r"error:", re.IGNORECASE)


def telling(output: str) -> str:
    """The lines that say what went wrong: from pip's first complaint on, or else the last ones."""
    lines = [line.strip() for line in output.splitlines()]
    told = [line for line in lines if line and not _NOT_TELLING.match(line)]
    complaint = next((n for n, line in enumerate(told) if _COMPLAINT.match(line)), 0)
    return "\n".join(told[complaint:][-_TOLD_LINES:])[-_TOLD_CHARACTERS:] or "pip gave no reason."
