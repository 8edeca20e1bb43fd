"""Budgets of a config: a document that is too large is refused before it is validated, and no message repeats it."""

import json
import tracemalloc
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.errors import MAX_VIOLATIONS, InvalidArgument, from_body, to_body
from trainyard_protocol.job.config import limits
from trainyard_protocol.job.config.text import NotReadable, read
from trainyard_protocol.job.config.validation import checked_job
from trainyard_protocol.job.machines import load_catalog

CATALOG = load_catalog(None)
KEYS = st.text(max_size=3) | st.sampled_from(
    ("jobId", "trainingInput", "args", "labels", "masterConfig", "hyperparameters", "params")
)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def deep(levels: int) -> object:
    document: object = 1
    for _ in range(levels):
        document = [document]
    return document


def test_document_with_too_much_of_anything_is_found() -> None:
    keys = {str(n): n for n in range(limits.MAX_KEYS)}
    shared: object = ["x"] * 100
    for _ in range(6):
        shared = [shared] * 100  # a billion laughs, after YAML has read it
    assert limits.excess({"a": [keys] * 3, "b": deep(limits.MAX_DEPTH - 1)}) == ""
    assert limits.excess(deep(limits.MAX_DEPTH + 1)) == "is nested too deeply; 32 levels are allowed."
    assert limits.excess([keys | {"x": 1}]) == "has a mapping with 501 keys; 500 are allowed."
    assert limits.excess([1] * limits.MAX_VALUES) == "has more than 10000 values."
    assert limits.excess(shared) == "has more than 10000 values."


BEYOND = {
    "a: " + "x" * limits.MAX_BYTES: "is larger than 1 MiB",
    "a: [" + "{}," * 30_000 + "]": "has more than 10000 values",
    '{"a": [' + "{}," * 30_000 + "{}]}": "has more than 10000 values",
    "".join(f"k{n}: 1\n" for n in range(501)): "has a mapping with more than 500 keys",
    "a: {b: 1}\n" + "".join(f"k{n}: {{c: 1}}\n" for n in range(30_000)): "has a mapping with more than 500 keys",
    "a: " + "[" * 40 + "]" * 40: "is nested too deeply",
    '{"a": ' + "[" * 60_000: "is nested too deeply",
    'a: "\\U00110000"': "has an escape that is no character",
    'a: "\\UFFFFFFFF"': "has an escape that is no character",
    "a: 0x" + "f" * 5000: "cannot be read as a number",
    '{"a": ' + "9" * 5000 + "}": "cannot be read as a number",
    "x0: &x0 {k: 1}\n"
    + "".join(f"x{n}: &x{n} {{<<: [*x{n - 1}, *x{n - 1}]}}\n" for n in range(1, 30)): "has more than 10000 values",
}


def test_config_text_beyond_a_limit_is_refused() -> None:
    for text, message in BEYOND.items():
        with pytest.raises(NotReadable) as refused:
            read(text)
        assert message in refused.value.text, text[:80]


def _args(count: int) -> Mapping[str, object]:
    return {"pythonModule": "a.b", "args": [{}] * count}


def _unknown(count: int) -> Mapping[str, object]:
    return {"".join(chr(97 + int(digit)) for digit in str(n)): n for n in range(count)}


def _long(count: int) -> Mapping[str, object]:
    return {"pythonModule": "\0" * count, "region": [], "masterType": "é" * count, "scaleTier": "x" * count}


@pytest.mark.parametrize("kind", [_args, _unknown, _long])
def test_refusal_of_a_job_does_not_grow_with_its_mistakes(kind: Callable[[int], Mapping[str, object]]) -> None:
    """The answer is a few kilobytes, and the memory follows the size of the request."""
    sizes = []
    for count in (30, 480):
        job = {"jobId": "a", "trainingInput": kind(count)}
        tracemalloc.start()
        with pytest.raises(InvalidArgument) as refused:
            checked_job(job, CATALOG)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(refused.value.violations) <= MAX_VIOLATIONS
        sizes.append(len(json.dumps(to_body(refused.value))))
        assert peak < 5_000_000
    assert sizes[1] < 30_000
    assert sizes[1] < 2 * sizes[0] + 2_000


def test_refusal_with_more_mistakes_says_so() -> None:
    with pytest.raises(InvalidArgument) as refused:
        checked_job({"jobId": "a", "trainingInput": _args(21)}, CATALOG)
    assert refused.value.message.endswith("There are more; these are the first 20.")
    received = from_body(400, to_body(refused.value))
    assert isinstance(received, InvalidArgument)
    assert (len(received.violations), received.more) == (20, True)


@given(DOCUMENTS)
def test_job_of_any_document_is_accepted_or_refused(document: object) -> None:
    for body in (document, {"jobId": "a", "trainingInput": document}, {"jobId": "a", "labels": document}):
        with pytest.raises(InvalidArgument) as refused:
            checked_job(body, CATALOG)
        assert all(violation.message for violation in refused.value.violations)
        assert json.dumps(to_body(refused.value), ensure_ascii=False).encode(errors="surrogatepass")


@pytest.mark.parametrize("name", ["", "\u200b", "\x1b[31m", "a.b", "a[0]", " ", "é", "x" * 100_000])
def test_unknown_name_of_any_characters_is_named_in_printable_ones(name: str) -> None:
    for body in ({"jobId": "a", "trainingInput": {"pythonModule": "a.b", name: 1}}, {name: 1}):
        with pytest.raises(InvalidArgument) as refused:
            checked_job(body, CATALOG)
        (unknown,) = (violation for violation in refused.value.violations if violation.unknown is not None)
        assert unknown.unknown == name
        assert 'Unknown name "' in unknown.message
        assert unknown.message.isprintable()
        assert len(unknown.message) < 2_000


@given(st.text("{}[]:,-&*!|>'\"%@`#\n\t ab1\u2028\r", max_size=60))
def test_read_any_text_succeeds_or_reports_a_valid_position(text: str) -> None:
    span = None
    try:
        read(text)
    except NotReadable as error:
        span, lines = error.span, error.lines
    if span is not None:
        assert 1 <= span.start.line <= len(lines)
        assert span.end_column is None or span.end_column >= span.start.column
