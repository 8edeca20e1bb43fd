"""Patterns of `=~`: RE2's, in linear time."""

import pytest

from trainyard_server.domain.filters.text_patterns import LONGEST, PatternError, pattern


def test_pattern_finds_what_clients_look_for() -> None:
    rows = [
        (r"loss: \d+\.\d+", "step 3 loss: 0.25", True),
        (r"^epoch [0-9]+/[0-9]+$", "epoch 3/10", True),
        (r"^epoch [0-9]+/[0-9]+$", "an epoch 3/10", False),
        (r"(foo|ba[rz]){2}\b", "foobaz", True),
        ("(?i)warn|error", "An Error", True),
        ("[[:alpha:]]+é", "caffé", True),
        ("", "", True),
        ("a", "half a surrogate: \ud800 a", True),
    ]
    assert [row for row in rows if pattern(row[0]).is_in(row[1]) is not row[2]] == []


def test_pattern_takes_linear_time() -> None:
    """A matcher that goes back would not end before the sun does."""
    text = "ab" * 20_000
    for expression in ("(a+)+c", "(a|ab|b)*c", "((a*b*)*)*c", "(a?b?){40}c", "[ab]*a[ab]{150}c"):
        assert not pattern(expression).is_in(text), expression
        assert pattern(expression).is_in(f"{text}{'a' * 151}c"), expression


@pytest.mark.parametrize(
    "text", ["a**", "[", "(a", "\\1", "(?=a)", "a{1001}", "((a{99}){99}){99}", "a" * (LONGEST + 1)]
)
def test_pattern_that_is_wrong_or_too_large_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(PatternError, match=r"^(it is not a regular expression of RE2: |a pattern may have).+\.$"):
        pattern(text)
