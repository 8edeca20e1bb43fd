"""The pages of the site: their number and length, and what stands in their blocks of commands."""

import re
from pathlib import Path

import click
import pytest
import yaml

from beds.site import pages
from beds.site.pages import DOCS, PAGES, ROOT, Block

LANGUAGES = {"sh", "bash", "console", "dockerfile", "ini", "json", "python", "sql", "text", "toml", "yaml"}


def site() -> dict[str, object]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def in_nav(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    assert isinstance(inner, list) or hasattr(inner, "__iter__")
    return [page for part in inner for page in in_nav(part)]


def test_site_has_at_most_thirty_two_pages_each_in_its_navigation() -> None:
    assert len(PAGES) <= 32
    assert sorted(in_nav(site()["nav"])) == [str(page.relative_to(DOCS)) for page in PAGES]


def test_no_page_has_more_than_two_thousand_words() -> None:
    long = {page.name: words for page in PAGES if (words := pages.words_of(page)) > 2000}
    assert not long


def test_every_page_begins_with_its_title_and_what_it_is_for() -> None:
    wrong = [page.name for page in PAGES if not re.match(r"# \S.*\n\n[A-Z`].{20,}", page.read_text(encoding="utf-8"))]
    assert not wrong


def test_every_block_has_a_language_and_every_command_is_run_or_says_why_not() -> None:
    wrong = [
        f"{page.relative_to(DOCS)}:{block.line}: {reason}"
        for page in PAGES
        for block in pages.blocks(page)
        if (reason := what_is_wrong(block))
    ]
    assert not wrong


def what_is_wrong(block: Block) -> str | None:
    if block.language not in LANGUAGES:
        return f"the language is {block.language!r}"
    if block.language != "sh":
        return "commands of a language `sh`, please" if block.runs else None
    if block.mark == "run" or re.fullmatch(r"not run: .{8,}", block.mark):
        return None
    if found := re.fullmatch(r"shown by (tests/[\w/]+\.py)::(\w+)", block.mark):
        path, name = found.groups()
        exists = (ROOT / path).exists() and re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.M)
        return None if exists else f"there is no {path}::{name}"
    return f"the comment above is {block.mark!r}"


def test_no_mark_stands_apart_from_its_block() -> None:
    for page in PAGES:
        marks = re.findall(r"<!-- (?:run|shown by|not run)\b.*?-->", page.read_text(encoding="utf-8"))
        assert len(marks) == len([block for block in pages.blocks(page) if block.mark]), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_has_the_flags_that_the_command_line_has(page: Path) -> None:
    wrong = []
    for block in pages.blocks(page):
        for words in pages.commands(block) if block.language == "sh" else ():
            try:
                pages.parse(words)
            except click.UsageError as error:
                wrong.append(f"line {block.line}: {' '.join(words)}: {error.message}")
    assert not wrong


def test_mistyped_flag_is_found_in_a_block() -> None:
    block = Block(1, "sh", "run", "cd x && jobs submit training a --confg b \\\n  --package-path c  # text\n")
    ((*words,),) = pages.commands(block)
    with pytest.raises(click.NoSuchOption, match="--confg"):
        pages.parse(words)
