"""Filters and blocks of templates."""

from trainyard_server.dashboard import rendering
from trainyard_server.domain.durations import duration

BAD = '<script>"&'


def test_durations_and_numbers_are_short() -> None:
    durations = {0: "0s", 59.9: "59s", 60: "1m 00s", 3599: "59m 59s", 7380: "2h 03m", 90000: "1d 1h", -5: "0s"}
    assert {seconds: duration(seconds) for seconds in durations} == durations
    numbers = [
        (0.000159, "0.000159"),
        (0.31457, "0.3146"),
        (7.0, "7"),
        (1183.4, "1,183"),
        (1500000.0, "1.5e6"),
        (1e-9, "1e-9"),
        (float("nan"), "NaN"),
        (float("-inf"), "−∞"),
        (None, ""),
    ]
    assert [rendering.number(value) for value, _ in numbers] == [text for _, text in numbers]


def test_spark_is_a_line_through_its_finite_points() -> None:
    drawn = rendering.spark([(0, 1.0), (5, float("nan")), (10, 0.0)], BAD)
    assert 'd="M0.0 1.5L72.0 16.5"' in drawn
    assert "<script" not in drawn
    assert rendering.spark([(0, 1.0)], "one") == ""
    assert rendering.spark([(0, 2.0), (1, 2.0)], "flat") != ""


def test_typed_text_is_escaped_everywhere() -> None:
    for made in (rendering.icon(BAD, BAD), rendering.state(BAD), rendering.to_json({BAD: BAD})):
        assert "<script" not in made
    assert rendering.job_path("a/b", "<c>") == "/projects/a%2Fb/jobs/%3Cc%3E"
