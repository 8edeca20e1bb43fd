"""Patterns of `=~`: what they find is what Python's `re` finds, and others are refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_server.domain.text_patterns import LONGEST, PatternError, pattern

_ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", r"\d", r"\.", r"\b", "c?", "(a|bc)", "(?:b|)?", ".*", ".+"]
)


@given(
    st.lists(_ATOMS, max_size=6), st.booleans(), st.booleans(), st.text("abc.1 ", max_size=10), st.booleans()
)
def test_pattern_finds_what_a_regular_expression_finds(
    atoms: list[str], from_start: bool, to_end: bool, text: str, repeated: bool
) -> None:
    expression = "".join(atoms) + ("b+" if repeated and not to_end else "")
    expression = f"{'^' if from_start else ''}{expression}{'$' if to_end else ''}|c\\."
    assert pattern(expression).is_in(text) == (re.search(expression, text) is not None), expression


def test_patterns_that_may_take_long_are_refused() -> None:
    wrong = [
        "(a+)+b", "(a|b)*", "ab+c", "a{2}", "a**", "[", "(a", "a)", "\\", "\\1", "a^b", "$a", "*a", "[[:alpha:]]",
        "[b-a]", "a" * (LONGEST + 1), "(a|b)" * 10,
    ]  # fmt: skip
    accepted = []
    for text in wrong:
        try:
            pattern(text)
        except PatternError:
            continue
        accepted.append(text)
    assert not accepted


@pytest.mark.parametrize("text", ["(?i)WARN|error", "(?i)^an Err.r"])
def test_pattern_ignores_case_where_it_says_so(text: str) -> None:
    assert pattern(text).is_in("An Error")
