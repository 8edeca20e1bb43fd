"""The place of what is wrong in a config's text: line, column, and the column after it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol import config_text
from trainyard_protocol.config_text import ConfigText, Mark, NotReadable, Span, place_of, read, sentence
from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.training_input import parse_job

GOOD = """\
labels: {team: vision}
trainingInput:
  scaleTier: CUSTOM
  master_type: local-1
  args:
  - --lr
  - "a b"
  masterConfig:
    acceleratorConfig: {count: 1, type: NVIDIA_TESLA_T4}
"""


def text_at(config: ConfigText, span: Span) -> str:
    line = config.lines[span.start.line - 1]
    return line[span.start.column - 1 : span.end_column - 1 if span.end_column else None]


@pytest.mark.parametrize(
    ("field", "line", "marked"),
    [
        ("scale_tier", 3, "CUSTOM"),
        ("master_type", 4, "local-1"),
        ("args", 5, "args"),
        ("args[1]", 7, '"a b"'),
        ("master_config.accelerator_config.count", 9, "1"),
        ("master_config.accelerator_config", 9, "acceleratorConfig"),
        ("master_config.image_uri", 8, "masterConfig"),
        ("python_module", 2, "trainingInput"),
        ("job.labels", 1, "labels"),
        ("labels.team", 1, "vision"),
        ("job.job_id", 1, "labels: {team: vision}"),
    ],
)
def test_place_of_a_field_is_what_the_reader_should_look_at(field: str, line: int, marked: str) -> None:
    config = read(GOOD)
    span = place_of(config.root, Violation(field, "is wrong."))
    assert (span.start.line, text_at(config, span)) == (line, marked)


def test_place_of_an_unknown_name_is_the_name() -> None:
    config = read("trainingInput:\n  scaleTeir: BASIC\n")
    with pytest.raises(InvalidArgument) as caught:
        parse_job({"jobId": "j", **config.data})
    (unknown,) = caught.value.violations
    assert text_at(config, place_of(config.root, unknown)) == "scaleTeir"
    assert sentence(unknown) == '"scaleTeir" is not a field of trainingInput. Did you mean "scaleTier"?'


@pytest.mark.parametrize(
    ("text", "span", "said"),
    [
        ("a: 1\na: 2\n", Span(Mark(2, 1), 2), '"a" is given twice'),
        ("a:\n\tb: 1\n", Span(Mark(2, 1)), "has a tab"),
        ("- a\n- b\n", Span(Mark(1, 1), 4), "this is a list"),
        ("b: 1\na:  2026-01-01\n", Span(Mark(2, 5), 15), "is a date to YAML"),
        ("a: \x01\n", Span(Mark(1, 4), 5), "holds the character U+0001"),
        ('{"a": 1\n"b": 2}', Span(Mark(2, 4)), "is not YAML"),
        ("", None, "is empty"),
        ("# only\n", None, "nothing but comments"),
    ],
)
def test_read_what_is_no_config_says_where(text: str, span: Span | None, said: str) -> None:
    with pytest.raises(NotReadable, match=re.escape(said)) as caught:
        read(text)
    assert caught.value.span == span


def test_read_knows_json_by_itself_also_with_tabs() -> None:
    config = read('{\n\t"trainingInput": {"workerCount": "\\ud83d\\ude00"}\n}')
    assert config.data == {"trainingInput": {"workerCount": "\U0001f600"}}
    assert read("{trainingInput: {}}").data == {"trainingInput": {}}


def test_read_json_that_is_none_is_explained_as_json_when_it_is_said_to_be() -> None:
    with pytest.raises(NotReadable, match="is not JSON"):
        read("{trainingInput: {}}", "json")


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "1" + ":59" * 5000, "1" * 5000])
def test_read_number_of_thousands_of_digits_is_refused(number: str) -> None:
    with pytest.raises(NotReadable, match="cannot be read as a number"):
        read(f"a: {number}\n")


def test_read_value_over_several_lines_ends_where_its_first_line_does() -> None:
    config = read("trainingInput:\n  pythonModule: |\n    a\n    b\n")
    span = place_of(config.root, Violation("python_module", "is wrong."))
    assert (span.start.line, text_at(config, span)) == (2, "|")


@given(st.text("{}[]:,-&*!|>'\"%@`#\n\t ab1\u2028\r", max_size=60))
def test_read_any_text_is_read_or_refused_at_a_place_in_it(text: str) -> None:
    span = None
    try:
        config_text.read(text)
    except NotReadable as error:
        span, lines = error.span, error.lines
    if span is not None:
        assert 1 <= span.start.line <= len(lines)
        assert span.end_column is None or span.end_column >= span.start.column
