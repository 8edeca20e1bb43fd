"""Mask: replaces the secrets of a run in its output. It imports only the standard library, for the supervisor.

Masked are exact values and their parts that are secrets by themselves: each line of a value of several lines that has
at least MIN_LINE characters, the strings of JSON such as a service account's key, and the password in a URL. Of each
also what clients print of it: in JSON, in a URL, in HTML, as Python and shells quote it, and in base64, alone or behind
a user's name. A program that changes a value in another way shows it.
"""

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from urllib.parse import quote, quote_plus, unquote

MASKED = b"***"

MIN_LINE = 8
"""Characters of a line of a value of several lines, or of a string of JSON: shorter ones, as `}`, are no secrets."""

_PREFIXES = (16, 8, 4)
"""Bytes by which a form is looked up: the most that it has. 4 are those of the shortest value."""

_URL_START = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@:]*:")
_PASSWORD = re.compile(r"[^\s/?#]+(?=@)")
_RAW_PASSWORD = re.compile(r"\S+(?=@)")
_MOST_URLS, _LONGEST_URL = 20, 4096  # of a value, in characters

_MIN_INNER = 6  # characters of base64 that begins inside a group, without those that other text is in

_OF_BOTH = (0, 2, 3)
"""Characters of base64 that what is before a secret changes, by its bytes in the first group."""

_NOT_SECRET = frozenset(
    {
        *("type", "project_id", "quota_project_id", "client_email", "client_id", "universe_domain", "account"),
        *("audience", "subject_token_type", "region", "user", "username", "email", "host", "database", "dbname"),
    }
)
"""Fields of JSON that a log may name. Addresses without a password are none either."""

_URL_SAFE = (
    "",  # quote(..., safe='') and Java
    "/",  # quote
    " +",  # SQLAlchemy
    "$&+,;=",  # Go, in front of a host
    "!~*'()",  # JavaScript: encodeURIComponent
    "!$&'()*+,%",  # browsers and Node.js, in front of a host
    "!$&'()*+,;=:",  # urllib3 and httpx, in front of a host
    "!$&'()*+,;=:@/",  # in a path
    "!$&'()*+,;=:@/?",  # in a query
    "!#$%&'()*+,/:;=?@[]~",  # requests, anywhere
)
"""Characters that clients leave as they are in URLs, beside letters, digits and `_.-~`."""


class Mask:
    """A mask for those values. False without any."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        least = _PREFIXES[-1]
        forms = {form for value in values for form in _forms(value) if len(form) >= least}
        self._forms: dict[bytes, list[bytes]] = {}
        for form in sorted(forms, key=len, reverse=True):  # the longest that matches is masked
            width = next(width for width in _PREFIXES if len(form) >= width)
            self._forms.setdefault(form[:width], []).append(form)
        self.longest = max(map(len, forms), default=0)
        self._widths = sorted({len(prefix) for prefix in self._forms}, reverse=True)
        self._candidate = _candidates(self._forms, self._widths)

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
        end = 0
        for candidate in self._candidate.finditer(data):
            start = candidate.start()
            for width in self._widths if start >= end else ():
                forms = self._forms.get(data[start : start + width])
                if forms and (form := next((form for form in forms if data.startswith(form, start)), b"")):
                    end = start + len(form)
                    yield start, end
                    break


def _forms(value: str) -> Iterator[bytes]:
    """Every form in which clients print the value, and its parts that are secrets by themselves."""
    texts = {value.strip(), *map(str.strip, _strings(value))}
    texts |= {form for text in texts for password in _passwords(text) for form in (password, unquote(password))}
    for text in texts:
        for form in {text, *_in_json(text), *_in_urls(text), *_in_html(text), *_quoted(text)}:
            yield form.encode()
        for data in _encoded(text):
            yield from _in_base64(data, (0, 1, 2))
    lines = (line.strip() for text in texts for line in re.split(r"[\r\n]+", text))
    for line in {line for line in lines if len(line) >= MIN_LINE} - texts:
        for form in {line, *_in_json_once(line), quote(line, safe="")}:
            yield form.encode()
        yield from _in_base64(line.encode(), (0,))


def _strings(value: str) -> Iterator[str]:
    """The strings of a value in JSON that may be secrets."""
    if not value.lstrip().startswith(("{", "[")):
        return
    try:
        waiting = [("", json.loads(value))]
    except (ValueError, RecursionError):
        return
    while waiting:
        name, item = waiting.pop()
        match item:
            case str() if len(item) >= MIN_LINE and name not in _NOT_SECRET and not _is_plain_url(item):
                yield item
            case dict():
                waiting += item.items()
            case list():
                waiting += [(name, element) for element in item]


def _passwords(text: str) -> Iterator[str]:
    """The passwords in URLs, as they are written there; SQLAlchemy takes one with a `/`, up to the last `@`."""
    for start in islice(_URL_START.finditer(text), _MOST_URLS):
        for form in (_PASSWORD, _RAW_PASSWORD):
            if password := form.match(text, start.end(), start.end() + _LONGEST_URL):
                yield password[0]


def _is_plain_url(text: str) -> bool:
    """Whether the text is an address alone, such as that of an endpoint."""
    return re.fullmatch(r"https?://[A-Za-z0-9.:/%_-]+", text) is not None


def _in_json(text: str) -> Iterator[str]:
    for form in _in_json_once(text):
        yield form
        yield from _in_json_once(form)  # JSON as a string of JSON


def _in_json_once(text: str) -> Iterator[str]:
    for is_ascii in (True, False):
        form = json.dumps(text, ensure_ascii=is_ascii)[1:-1]
        yield form
        yield form.replace("/", "\\/")  # PHP
        yield re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", form)  # Go


def _in_urls(text: str) -> Iterator[str]:
    quoted = {quote_plus(text), *(quote(text, safe=safe) for safe in _URL_SAFE)}
    quoted.add(re.sub("[:@/]", lambda match: quote(match[0], safe=""), text))  # older SQLAlchemy
    for form in quoted:
        yield form
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), form)


def _in_html(text: str) -> Iterator[str]:
    escaped = html.escape(text, quote=False)
    yield escaped
    for double, single in (("&quot;", "&#x27;"), ("&#34;", "&#39;"), ("&quot;", "&#39;"), ("&quot;", "&apos;")):
        yield escaped.replace('"', double).replace("'", single)


def _quoted(text: str) -> Iterator[str]:
    """Python's texts and bytes, which escape `'` or not, and what shells quote (`set -x`)."""
    for form in (repr(text)[1:-1], ascii(text)[1:-1], repr(text.encode())[2:-1]):
        yield form
        yield re.sub(r"(?<!\\)'", r"\'", form)
    yield text.replace("'", "'\\''")
    yield text.replace("'", "'\"'\"'")


def _encoded(text: str) -> Sequence[bytes]:
    """The text in UTF-8 and, for Basic authentication as requests sends it, in Latin-1."""
    is_latin = not text.isascii() and max(text) <= "\xff"
    return (text.encode(), text.encode("latin-1")) if is_latin else (text.encode(),)


def _in_base64(data: bytes, offsets: Iterable[int]) -> Iterator[bytes]:
    """Base64 of the data behind that many bytes: `USER:` before a password may be of any length."""
    for before in offsets:
        shifted = bytes(before) + data
        for part in (shifted, shifted[: len(shifted) // 3 * 3]):  # whole groups are the same whatever follows
            for encoded in (base64.b64encode(part), base64.urlsafe_b64encode(part)):
                form = encoded.rstrip(b"=")[_OF_BOTH[before] :]
                if not before or len(form) >= _MIN_INNER:
                    yield form


def _candidates(prefixes: Iterable[bytes], widths: Iterable[int]) -> re.Pattern[bytes]:
    """A pattern for places where a form may begin. It has a class of bytes for each place of a prefix: whatever the
    number of forms, most of a text is passed by in C, by the class of the first place."""
    first, rest = set[int](), []
    for width in widths:
        columns = [set(column) for column in zip(*(p for p in prefixes if len(p) == width), strict=True)]
        first |= columns[0]
        rest.append(b"".join(map(_one_of, columns[1:])))
    classes = _one_of(first) + b"(?=" + b"|".join(rest) + b")" if first else b"(?!)"
    return re.compile(classes)


def _one_of(column: Iterable[int]) -> bytes:
    return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(column)) + b"]"
