"""Figures of the house: what a newcomer reads, and where a capability lives."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSE = runpy.run_path(str(ROOT / "scripts" / "house.py"))


def test_the_two_walks_are_short_and_pass_no_capability() -> None:
    walks = HOUSE["walked"]()
    assert len(walks.files) <= 30
    assert walks.lines <= 7000
    assert walks.imports == 0


@pytest.mark.parametrize("name", HOUSE["capabilities"]())
def test_capability_has_at_most_six_homes_and_a_line_in_a_registry(name: str) -> None:
    assert 0 < len(HOUSE["homes"](name)) <= 6
    assert HOUSE["lines_of"](name)


def test_architecture_lists_the_capabilities() -> None:
    text = (
        (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## The capabilities")[2].partition("## ")[0]
    )
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(HOUSE["capabilities"]())
