"""Positions of problems in the text of a config: line, column and end column."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.job.config import text as config_text
from trainyard_protocol.job.config.text import (
    ConfigText,
    NotReadable,
    TextPosition,
    TextSpan,
    position_of,
    read,
    violation_message,
)
from trainyard_protocol.job.training_input import parse_job

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


def text_at(config: ConfigText, span: TextSpan) -> str:
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
def test_position_of_a_field_is_its_value_or_key(field: str, line: int, marked: str) -> None:
    config = read(GOOD)
    span = position_of(config.root, Violation(field, "is wrong."))
    assert (span.start.line, text_at(config, span)) == (line, marked)


def test_position_of_an_unknown_field_is_its_name() -> None:
    config = read("trainingInput:\n  scaleTeir: BASIC\n")
    with pytest.raises(InvalidArgument) as caught:
        parse_job({"jobId": "j", **config.data})
    (unknown,) = caught.value.violations
    assert text_at(config, position_of(config.root, unknown)) == "scaleTeir"
    assert violation_message(unknown) == '"scaleTeir" is not a field of trainingInput. Did you mean "scaleTier"?'


@pytest.mark.parametrize(
    ("text", "span", "message"),
    [
        ("a: 1\na: 2\n", TextSpan(TextPosition(2, 1), 2), '"a" is given twice'),
        ("a:\n\tb: 1\n", TextSpan(TextPosition(2, 1)), "has a tab"),
        ("- a\n- b\n", TextSpan(TextPosition(1, 1), 4), "this is a list"),
        ("b: 1\na:  2026-01-01\n", TextSpan(TextPosition(2, 5), 15), "is a date to YAML"),
        ("a: \x01\n", TextSpan(TextPosition(1, 4), 5), "holds the character U+0001"),
        ('{"a": 1\n"b": 2}', TextSpan(TextPosition(2, 4)), "is not YAML"),
        ("", None, "is empty"),
        ("# only\n", None, "nothing but comments"),
    ],
)
def test_read_invalid_config_reports_its_position(text: str, span: TextSpan | None, message: str) -> None:
    with pytest.raises(NotReadable, match=re.escape(message)) as caught:
        read(text)
    assert caught.value.span == span


def test_read_detects_json_even_with_tabs() -> None:
    config = read('{\n\t"trainingInput": {"workerCount": "\\ud83d\\ude00"}\n}')
    assert config.data == {"trainingInput": {"workerCount": "\U0001f600"}}
    assert read("{trainingInput: {}}").data == {"trainingInput": {}}


def test_read_invalid_json_is_reported_as_json_with_that_format() -> None:
    with pytest.raises(NotReadable, match="is not JSON"):
        read("{trainingInput: {}}", "json")


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "1" + ":59" * 5000, "1" * 5000])
def test_read_number_of_thousands_of_digits_is_refused(number: str) -> None:
    with pytest.raises(NotReadable, match="cannot be read as a number"):
        read(f"a: {number}\n")


def test_read_value_over_several_lines_ends_where_its_first_line_does() -> None:
    config = read("trainingInput:\n  pythonModule: |\n    a\n    b\n")
    span = position_of(config.root, Violation("python_module", "is wrong."))
    assert (span.start.line, text_at(config, span)) == (2, "|")


@given(st.text("{}[]:,-&*!|>'\"%@`#\n\t ab1\u2028\r", max_size=60))
def test_read_any_text_succeeds_or_reports_a_valid_position(text: str) -> None:
    span = None
    try:
        config_text.read(text)
    except NotReadable as error:
        span, lines = error.span, error.lines
    if span is not None:
        assert 1 <= span.start.line <= len(lines)
        assert span.end_column is None or span.end_column >= span.start.column
