"""Patterns of `=~`: what they find is what Python's `re` finds, and others are refused."""

import operator
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainyard_server.domain.text_patterns import LONGEST, PatternError, pattern

_ATOMS = st.one_of(
    st.sampled_from([r"\b", r"\B", "^", "$", "|", "", "{", "(?P<name>a)"]),
    st.builds(
        operator.add,
        st.sampled_from(
            [
                "a",
                "b",
                ".",
                "[ab]",
                "[^a]",
                r"\d",
                r"\.",
                "(a|bc)",
                "(?:b|)",
                "(a+)",
                "(b*c|^a)",
                r"(?:a\b|$)",
            ]
        ),
        st.sampled_from(["", "?", "*", "+", "*?", "{2}", "{0,2}", "{1,}"]),
    ),
)


@given(
    st.lists(_ATOMS, max_size=6).filter(lambda atoms: atoms.count("(?P<name>a)") < 2),
    st.text("abc.1 {", max_size=10),
)
def test_pattern_finds_what_a_regular_expression_finds(atoms: list[str], text: str) -> None:
    expression = "".join(atoms)
    assume(text or r"\B" not in expression)  # of which Python's re finds none in an empty text
    assert pattern(expression).is_in(text) == (re.search(expression, text) is not None), expression


def test_pattern_takes_linear_time() -> None:
    """A matcher that goes back would not end before the sun does."""
    text = "ab" * 20_000
    for expression in (
        "(a+)+c",
        "(a|ab|b)*c",
        "((a*b*)*)*c",
        "(a?b?){40}c",
        "(.*)*(.*)*c",
        "[ab]*a[ab]{150}c",
    ):
        assert not pattern(expression).is_in(text), expression
        assert pattern(expression).is_in(f"{text}{'a' * 151}c"), expression


def test_patterns_that_are_wrong_or_too_large_are_refused() -> None:
    wrong = [
        "a**", "a*+", "a{3,2}", "[", "(a", "a)", "\\", "\\1", "*a", "(?=a)", "[[:alpha:]]", "[b-a]",
        "a" * (LONGEST + 1), "a{1000}", "((a{9}){9}){9}", "((){999}){999}",
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
