import pytest

from trainyard_protocol.config.fields import rfc3339, seconds
from trainyard_protocol.sync import LogLine, Stream, SyncResponse, digest
from trainyard_protocol.views import severity


def line(text: str, stream: Stream = "stdout") -> LogLine:
    return LogLine(time="2026-11-20T10:00:00Z", stream=stream, text=text)


def test_digest_depends_on_order_stream_and_text_but_not_on_time() -> None:
    base = digest([line("a"), line("b")])
    assert base != digest([line("b"), line("a")])
    assert base != digest([line("a"), line("b", "stderr")])
    assert base == digest([line("a").model_copy(update={"time": "x"}), line("b")])
    assert digest([]) != digest([line("")])


def test_digest_takes_any_text_that_json_can_carry() -> None:
    assert digest([line("\ud800 \x00")])


def test_older_side_ignores_fields_of_a_newer_one() -> None:
    assert SyncResponse.model_validate({"version": "1", "lease_s": None, "runs": [], "new": 1}).runs == ()


@pytest.mark.parametrize(
    ("stream", "text", "level"),
    [
        ("stdout", "epoch 1", "INFO"),
        ("stderr", "Traceback (most recent call last):", "ERROR"),
        ("stderr", "INFO:root:hello", "INFO"),
        ("stderr", "2026-11-20 10:00:00,123 WARNING trainer: slow", "WARNING"),
        ("stderr", "[ERROR] bad", "ERROR"),
        ("stderr", "W1120 10:00:00.000000 12 file.cc:3] slow", "WARNING"),
        ("stdout", '{"severity": "warning", "message": "m"}', "WARNING"),
        ("stdout", '{"severity": ["x"]}', "INFO"),
        ("stdout", '{"broken', "INFO"),
        ("stderr", "[1, 2]", "ERROR"),
    ],
)
def test_severity_is_what_the_line_says_else_its_stream(stream: Stream, text: str, level: str) -> None:
    assert severity(stream, text) == level


def test_seconds_reads_decimals_and_refuses_other_units() -> None:
    assert seconds("3.5s") == 3.5
    with pytest.raises(ValueError, match="not a duration"):
        seconds("3m")


def test_rfc3339_is_utc_with_z() -> None:
    from datetime import UTC, datetime, timedelta, timezone

    assert rfc3339(datetime(2026, 11, 20, 10, 0, tzinfo=UTC)) == "2026-11-20T10:00:00Z"
    east = timezone(timedelta(hours=2))
    assert rfc3339(datetime(2026, 11, 20, 10, 0, 0, 5, tzinfo=east)) == "2026-11-20T08:00:00.000005Z"
