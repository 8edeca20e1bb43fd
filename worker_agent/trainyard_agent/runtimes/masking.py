"""Mask: replaces the secrets of a run in its output. It imports only the standard library, for the supervisor.

Masked are exact values, each line of a value of several lines that has at least MIN_LINE characters, and what becomes
of either in JSON, in a URL and in base64. A program that changes a value in another way shows it.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator

MASKED = b"***"

MIN_LINE = 8
"""Characters of a line of a value of several lines: shorter ones, such as `}`, are no secrets."""

_PREFIX = 4  # characters of the shortest value


class Mask:
    """A mask for those values. False without any."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values for form in _forms(value) if len(form) >= _PREFIX}
        self._forms: dict[bytes, list[bytes]] = {}
        for form in sorted(forms, key=len, reverse=True):  # the longest that matches is masked
            self._forms.setdefault(form[:_PREFIX], []).append(form)
        self.longest = max(map(len, forms), default=0)
        # A class of bytes for each place of a prefix: whatever the number of forms, most of a text is passed by in C.
        classes = b"".join(_one_of(set(column)) for column in zip(*self._forms, strict=True))
        self._candidate = re.compile(classes)

    def __bool__(self) -> bool:
        return bool(self._forms)

    def __call__(self, data: bytes) -> bytes:
        """The text with each secret replaced by MASKED."""
        if not self._forms:
            return data
        parts, at = [], 0
        for start, end in self._found(data):
            parts += [data[at:start], MASKED]
            at = end
        return b"".join([*parts, data[at:]]) if parts else data

    def text(self, text: str) -> str:
        return self(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def outside(self, data: bytes, at: int) -> int:
        """`at`, or if that is inside a secret, the index behind it: where a long line may be split."""
        for start, end in self._found(data):
            if start >= at:
                break
            if end > at:
                return end
        return at

    def _found(self, data: bytes) -> Iterator[tuple[int, int]]:
        at = 0
        while self._forms and (candidate := self._candidate.search(data, at)):
            at = start = candidate.start()
            forms = self._forms.get(data[start : start + _PREFIX], ())
            form = next((form for form in forms if data.startswith(form, start)), b"")
            at += len(form) or 1
            if form:
                yield start, at


def _forms(value: str) -> Iterator[bytes]:
    lines = [line.strip() for line in re.split(r"[\r\n]+", value)]
    for text in {value.strip(), *(line for line in lines if len(line) >= MIN_LINE)}:
        data = text.encode()
        yield data
        yield json.dumps(text)[1:-1].encode()
        yield json.dumps(text, ensure_ascii=False)[1:-1].encode()
        yield re.sub(rb"[^A-Za-z0-9_.~-]", lambda match: b"%%%02X" % match[0][0], data)
        for part in (data, data[: len(data) // 3 * 3]):  # whole groups are the same whatever follows
            yield base64.b64encode(part).rstrip(b"=")
            yield base64.urlsafe_b64encode(part).rstrip(b"=")


def _one_of(column: Iterable[int]) -> bytes:
    return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(column)) + b"]"
