"""Filters and blocks of templates."""

from datetime import UTC, datetime, timedelta

from trainyard_server.dashboard import rendering
from trainyard_server.dashboard.rendering import Rendering
from trainyard_server.domain.durations import duration

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
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


def test_time_is_in_utc_without_scripts() -> None:
    assert str(rendering.time(NOW)) == (
        '<time datetime="2026-11-21T12:00:00.000Z" data-form="ago">2026-11-21 12:00:00 UTC</time>'
    )
    assert 'data-since="2026-11-21T11:59:00.000Z">1m 00s' in rendering.clock(NOW - timedelta(minutes=1), None, NOW)
    assert "data-since" not in rendering.clock(NOW, NOW)


def test_parts_are_the_live_blocks_of_a_page_and_of_its_frame() -> None:
    blocks = Rendering()._live_blocks("job/overview.html")
    assert {"live_head", "live_verdict", "live_timeline", "live_runs", "live_events"} <= blocks.keys()
    assert all(name.startswith("live_") for name in blocks)
