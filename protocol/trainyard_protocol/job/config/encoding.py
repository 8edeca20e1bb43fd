"""Encoding of a file that people write: UTF-8, and the UTF-16 and UTF-32 that YAML allows. Pure.

Windows PowerShell writes UTF-16 by `>`, Notepad a byte order mark.
"""

import codecs
import shlex

from trainyard_protocol.errors import InvalidArgument

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins with the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_ZEROS = (
    ((True, True, True, False), "utf-32-be"),
    ((False, True, True, True), "utf-32-le"),
    ((True, False), "utf-16-be"),
    ((False, True), "utf-16-le"),
)
"""Which of the first bytes are zero without a mark: the first character is ASCII (YAML 1.2.2, 5.2)."""

_USUAL = "WINDOWS-1252"
"""Latin-1 as Windows has it: the most probable encoding of a text with bytes that are not UTF-8."""


def decode(raw: bytes, name: str, path: str = "") -> str:
    """The text of a file without its byte order mark. `name` is that of messages, `path` the file, if it is one. Raises
    InvalidArgument with the line, and the command that writes the file in UTF-8."""
    mark, encoding = _encoding_of(raw)
    try:
        return raw[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise InvalidArgument(
                f"{name}: begins as {encoding.upper()} text, and is not. Write it as UTF-8."
            ) from error
        at = len(mark) + error.start
        line = raw[:at].count(b"\n") + 1
        raise InvalidArgument(f"{name}:{line}: is not UTF-8 text. {_advice(raw, raw[at], path)}") from error


def _encoding_of(raw: bytes) -> tuple[bytes, str]:
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            return mark, encoding
    zeros = tuple(byte == 0 for byte in raw[:4])
    return b"", next((name for pattern, name in _ZEROS if zeros[: len(pattern)] == pattern), "utf-8")


def _advice(raw: bytes, wrong: int, path: str) -> str:
    if b"\0" in raw:
        return "Is this a text file?"
    character = bytes([wrong]).decode(_USUAL, errors="replace")
    files = f" {shlex.quote(path)} > {shlex.quote(f'{path}.utf8')}" if path else ""
    return (
        f"The byte 0x{wrong:02X} is {character!r} in {_USUAL}. If that is its encoding, convert the file:  "
        f"iconv -f {_USUAL} -t utf-8{files}"
    )
