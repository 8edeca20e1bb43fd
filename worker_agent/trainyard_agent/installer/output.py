"""Messages of the installer: to the agent, by lines of their own, and to people, by errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

EVENT = "trainyard-install: "
"""Begins a line with a JSON object: `activity` (what is done now), `note` (a sentence for the job's log), `packages`
(name, version and requirements of each package that was installed), or `failed` (why)."""

AWAY = 69
"""The exit code of an installer that has waited in vain for what is away: EX_UNAVAILABLE."""

_MAX_LINES = 8
_MAX_CHARACTERS = 1500
_NOISE = re.compile(
    r"(note:|hint:|warning:|\[notice\]|\[end of output\]|deprecation:"
    r"|looking in (indexes|links):|processing |requirement already satisfied|using python )",
    re.IGNORECASE,
)
_ERROR = re.compile(r"(error:|\u00d7 )", re.IGNORECASE)
_SHORTEST = 4  # characters of a secret; a shorter one is part of any text
_concealed: set[str] = set()
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@'\"]+@")


class Refused(Exception):
    """A declaration that is not followed: the message says why."""


class Failed(Exception):
    """A command that has failed: the message is its output."""


class NoAnswer(Exception):
    """An index or a server has not answered for as long as it may: the message says which and why."""


def report(**event: object) -> None:
    print(EVENT + json.dumps(event), flush=True)


def events(output: str) -> Iterator[dict[str, object]]:
    """Read what was told, out of the output of the installer and all that it has started."""
    for line in output.splitlines():
        if line.startswith(EVENT):
            try:
                event = json.loads(line[len(EVENT) :])
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event


def error_excerpt(output: str) -> str:
    """The lines that explain a failure: from the first error on, or else the last ones."""
    reported = [str(event["failed"]) for event in events(output) if "failed" in event]
    lines = [line.strip() for line in (reported[-1] if reported else output).splitlines()]
    relevant = [line for line in lines if line and not _NOISE.match(line) and not line.startswith(("$ ", EVENT))]
    first_error = next((n for n, line in enumerate(relevant) if _ERROR.match(line)), 0)
    return "\n".join(relevant[first_error:][-_MAX_LINES:])[-_MAX_CHARACTERS:] or "Its installer gave no reason."


def conceal(values: Iterable[str]) -> None:
    """Let nothing that is said have these secrets."""
    _concealed.update(value for value in values if len(value) >= _SHORTEST)


def without_credentials(text: str) -> str:
    """The text with its URLs as anybody may see them, and without what is concealed."""
    for value in sorted(_concealed, key=len, reverse=True):
        text = text.replace(value, "***")
    return _CREDENTIALS.sub("", text)
