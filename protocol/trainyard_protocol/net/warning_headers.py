"""`Warning` headers of answers to what was done, but may not be meant: texts for people, as Kubernetes has them.

They have the code 299 (RFC 7234, section 5.5). Clients of Google's ignore them.
"""

import re
from collections.abc import Iterable

WARNING = "Warning"

_VALUE = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')


def warning_value(text: str) -> str:
    """The header's value for a text, which must be printable ASCII."""
    return '299 trainyard "{}"'.format(re.sub(r'(["\\])', r"\\\1", text))


def warnings_of(values: Iterable[str]) -> list[str]:
    """The texts of an answer's headers, each printable ASCII; other warnings than ours are left out."""
    matches = (_VALUE.fullmatch(value) for value in values if value.isascii() and value.isprintable())
    return [re.sub(r"\\(.)", r"\1", match[1]) for match in matches if match is not None]
