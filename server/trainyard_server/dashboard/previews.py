"""Previews of files: what a page shows of the first bytes of one. Pure.

A job wrote the file, so everything here is bounded, and every text goes through the templates, which escape it. Only
Markdown becomes markup: without HTML of its own, and with nothing that is loaded from elsewhere.
"""

import csv
import itertools
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markupsafe import Markup

from trainyard_server.domain.step_images import image_type

MAX_BYTES = 512 * 1024
"""How much of a file is read for its preview."""

MAX_IMAGE_BYTES = 32 * 10**6

_MAX_MARKDOWN = 64 * 1024  # bytes
_MAX_STEPS = 20_000
"""Attempts of the parser of Markdown, and its blocks: four times those of 64 KiB of prose with links and tables."""

_MAX_TEXT = 256 * 1024  # characters
_MAX_ROWS = 200
_MAX_COLUMNS = 40
_MAX_CELL = 300  # characters
_MAX_FACTS = 200
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"} | {127: 0x2421}
_SAFE_SCHEMES = ("http", "https", "mailto")
_CONTROL = re.compile(r"[\x00-\x20\x7f]")

Address = Callable[[str], str]
"""The address of a file's page or content, by its path below the job-dir."""


@dataclass(frozen=True, slots=True)
class PreviewTable:
    """A header and its rows. `notes` say what is left out."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Preview:
    """The part of a file that is shown. `left_out`: the bytes of a text or a table that are not."""

    kind: Literal["text", "table", "model", "markdown", "image", "none"]
    text: str = ""
    table: PreviewTable | None = None
    markup: Markup | None = None
    left_out: int = 0


def preview(path: str, size: int, head: bytes, page_of: Address, content_of: Address) -> Preview:
    """A preview of a file by its name, its size and its first `MAX_BYTES`."""
    name = path.rpartition("/")[2].lower()
    suffix = name.rpartition(".")[2] if "." in name else ""
    if image_type(name):
        return Preview("image" if size <= MAX_IMAGE_BYTES else "none")
    text = _text(head, is_whole=len(head) >= size)
    if text is None:
        return Preview("none")
    is_whole = len(head) >= size
    left_out = max(0, size - len(head))
    if suffix in ("md", "markdown") and size <= _MAX_MARKDOWN:
        markup = _markdown(text, posixpath.dirname(path), page_of, content_of)
        if markup is not None:
            return Preview("markdown", markup=markup)
    if suffix in _DELIMITERS and (table := _table(text, _DELIMITERS[suffix], is_whole=is_whole)) is not None:
        return Preview("table", table=table, left_out=left_out)
    if suffix == "json" and is_whole and (data := _json(text)) is not None:
        if (table := _model(data, name)) is not None:
            return Preview("model", table=table, text=_indented(data) or "")
        if indented := _indented(data):
            return Preview("text", text=indented)
    shown = text[:_MAX_TEXT]
    hidden = len(text[_MAX_TEXT:].encode()) if len(text) > _MAX_TEXT else 0
    return Preview("text", text=shown.translate(_PICTURES), left_out=left_out + hidden)


def _text(head: bytes, *, is_whole: bool) -> str | None:
    """The text of UTF-8; None for anything else. The last character may be cut in two."""
    if b"\0" in head:
        return None
    for cut in range(1 if is_whole else 4):
        try:
            return head[: len(head) - cut].decode("utf-8-sig")
        except UnicodeDecodeError:
            continue
    return None


def _table(text: str, delimiter: str, *, is_whole: bool) -> PreviewTable | None:
    """None for what is no table. The last line of a file that goes on may be a part of one."""
    lines = text.splitlines(keepends=True)
    reader = csv.reader(lines if is_whole else lines[:-1], delimiter=delimiter)
    rows: list[list[str]] = []
    try:
        for row in reader:
            if row:
                rows.append(row)
            if len(rows) > _MAX_ROWS + 1:
                break
    except csv.Error:  # shown as text instead
        return None
    if not rows:
        return None
    width = max(map(len, rows))
    notes = []
    if len(rows) > _MAX_ROWS + 1 or not is_whole:
        notes.append(f"the first {min(len(rows) - 1, _MAX_ROWS)} rows")
    if width > _MAX_COLUMNS:
        notes.append(f"the first {_MAX_COLUMNS} of {width:,} columns")
    columns = min(width, _MAX_COLUMNS)
    cells = [tuple(_cell(value) for value in [*row, *[""] * columns][:columns]) for row in rows[: _MAX_ROWS + 1]]
    return PreviewTable(cells[0], tuple(cells[1:]), tuple(notes))


def _cell(value: str) -> str:
    shown = value if len(value) <= _MAX_CELL else f"{value[:_MAX_CELL]}…"
    return shown.translate(_PICTURES)


def _json(text: str) -> Any:
    """None for what is no JSON, or too deep."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # shown as text instead
        return None


def _indented(data: Any) -> str | None:
    """None for JSON that would be too long: a deep one grows with its depth."""
    parts: list[str] = []
    length = 0
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(data):
            parts.append(part)
            length += len(part)
            if length > 2 * _MAX_TEXT:
                return None
    except (RecursionError, ValueError):
        return None
    return "".join(parts).translate(_PICTURES)


def _model(data: Any, name: str) -> PreviewTable | None:
    """A model as the trainers' library describes it (model.json), or the layers of Keras' config."""
    if not isinstance(data, dict):
        return None
    if (layers := _keras_layers(data)) is not None:
        notes = (f"the first {_MAX_FACTS} of {len(layers):,} layers",) if len(layers) > _MAX_FACTS else ()
        return PreviewTable(("Layer", "Type", "Settings"), tuple(map(_keras_layer, layers[:_MAX_FACTS])), notes)
    if name != "model.json":
        return None
    facts = [(_cell(path), _cell(value)) for path, value in _facts(data, "", 0)]
    return PreviewTable(("Field", "Value"), tuple(facts[:_MAX_FACTS])) if facts else None


def _keras_layers(data: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    config: Any = data.get("config")
    if not isinstance(data.get("class_name"), str) or not isinstance(config, dict):
        return None
    layers = config.get("layers")
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, dict) for layer in layers):
        return None
    return layers


def _keras_layer(layer: Mapping[str, Any]) -> tuple[str, ...]:
    config = layer.get("config")
    settings = config if isinstance(config, dict) else {}
    shown = ", ".join(
        f"{name}={value}"
        for name, value in settings.items()
        if name not in ("name", "trainable", "dtype")
        and isinstance(value, str | int | float | list)
        and not isinstance(value, bool)
        and value != []
    )
    title = settings.get("name") or layer.get("name") or ""
    return _cell(str(title)), _cell(str(layer.get("class_name", ""))), _cell(shown)


def _facts(data: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    for name, value in data.items():
        if isinstance(value, dict) and value and depth < 3:
            yield from _facts(value, f"{prefix}{name}.", depth + 1)
        elif isinstance(value, list):
            items = ", ".join(map(str, value[:20])) if not any(isinstance(x, dict | list) for x in value) else "…"
            yield f"{prefix}{name}", f"{items}, …" if len(value) > 20 else items
        else:
            yield f"{prefix}{name}", str(value)


class _TooManySteps(Exception):
    pass


class _Blocks(list[Token]):
    """The blocks of a text, at most _MAX_STEPS: a table makes some for each of its cells."""

    def append(self, block: Token) -> None:
        if len(self) >= _MAX_STEPS:
            raise _TooManySteps
        super().append(block)


def _bounded_parser() -> MarkdownIt:
    """A parser that raises _TooManySteps instead of working for seconds: on brackets without end, for example."""
    steps = itertools.count()

    def count(*_: object) -> bool:
        if next(steps) >= _MAX_STEPS:
            raise _TooManySteps
        return False

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.block.ruler.before("table", "count", count, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    parser.inline.ruler.before("text", "count", count)
    return parser


def _markdown(text: str, directory: str, page_of: Address, content_of: Address) -> Markup | None:
    """None for what would take too long: it is shown as text instead."""
    parser = _bounded_parser()
    state = StateCore(text, parser, {})
    state.tokens = tokens = _Blocks()
    try:
        parser.core.process(state)
        for token in (inner for outer in tokens for inner in outer.children or ()):
            if token.type == "link_open":
                token.attrs = _link(str(token.attrGet("href") or ""), directory, page_of)
            elif token.type == "image":
                token.type, token.content = "html_inline", str(_image(token, directory, content_of))
        return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 - escaped by the parser and here
    except (RecursionError, _TooManySteps):
        return None


def _link(href: str, directory: str, page_of: Address) -> dict[str, str | int | float]:
    """The attributes of a link: to another host, or to a file of the job. Any other leads nowhere."""
    if _scheme(href) in _SAFE_SCHEMES:
        return {"href": href, "rel": "noopener nofollow noreferrer"}
    inside = _inside(href, directory)
    return {"href": page_of(inside)} if inside else {}


def _image(token: Token, directory: str, content_of: Address) -> Markup:
    source = str(token.attrGet("src") or "")
    inside = _inside(source, directory)
    if inside and image_type(inside):
        return Markup('<img src="{}" alt="{}" loading="lazy">').format(content_of(inside), token.content)
    return Markup('<span class="dim">[image: {}]</span>').format(token.content or source[:_MAX_CELL])


def _scheme(href: str) -> str:
    try:
        return urlsplit(href).scheme.lower()
    except ValueError:
        return ""


def _inside(href: str, directory: str) -> str:
    """The path below the job-dir of a relative link; "" for any other link."""
    try:
        address = urlsplit(href)
    except ValueError:
        return ""
    path = unquote(address.path)
    if address.scheme or address.netloc or not path or path.startswith("/") or _CONTROL.search(path.replace(" ", "")):
        return ""
    joined = posixpath.normpath(posixpath.join(directory, path))
    return "" if joined in (".", "..") or joined.startswith("../") else joined
