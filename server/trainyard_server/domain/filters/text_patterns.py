"""Patterns of `=~`: RE2's regular expressions, as Cloud Logging has them, in time linear in the text. Pure.

Source: https://github.com/google/re2/wiki/Syntax
"""

from functools import lru_cache

import re2

LONGEST = 1000
"""Characters of a pattern."""

_MOST_MEMORY = 1 << 20  # bytes of a pattern; beyond what its states take, RE2 works without them

_options = re2.Options()
_options.max_mem = _MOST_MEMORY
_options.log_errors = False  # they are the caller's


class PatternError(ValueError):
    """The message says what is wrong with the pattern."""


class Pattern:
    def __init__(self, text: str) -> None:
        """Raises PatternError."""
        if len(text) > LONGEST:
            raise PatternError(f"a pattern may have {LONGEST} characters; this has {len(text)}.")
        try:
            self._compiled = re2.compile(_encoded(text), _options)
        except re2.error as error:
            raise PatternError(f"it is not a regular expression of RE2: {_reason(error)}.") from None

    def is_in(self, text: str) -> bool:
        """Whether a part of the text matches."""
        return self._compiled.search(_encoded(text)) is not None


@lru_cache(maxsize=64)
def pattern(text: str) -> Pattern:
    """A kept pattern. Raises PatternError."""
    return Pattern(text)


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")


def _reason(error: Exception) -> str:
    (reason,) = error.args
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
