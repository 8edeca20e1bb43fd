import pytest

from trainyard_protocol.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    TooLarge,
    TrainyardError,
    Unauthenticated,
    Unavailable,
    Violation,
    from_body,
    to_body,
)
from trainyard_protocol.net.warning_headers import warning_value, warnings_of

DUPLICATE = AlreadyExists(Violation("job.job_id", "A job with this id already exists."))


def test_envelope_of_a_duplicate_is_the_one_that_clients_parse() -> None:
    assert to_body(DUPLICATE) == {
        "error": {
            "code": 409,
            "message": "Field: job.job_id Error: A job with this id already exists.",
            "status": "ALREADY_EXISTS",
            "details": [{"@type": "type.googleapis.com/google.rpc.BadRequest",
             "fieldViolations": [{"field": "job.job_id", "description": "A job with this id already exists."}]}],
        }
    }  # fmt: skip


@pytest.mark.parametrize(
    "error",
    [
        DUPLICATE,
        InvalidArgument([Violation("a", "b"), Violation("job", "Did you mean x?", unknown="y")]),
        InvalidArgument(Violation("job", "", unknown="y")),
        FailedPrecondition("not now"),
        TooLarge("too large"),
        Unauthenticated("no token"),
        PermissionDenied("no"),
        NotFound("nothing"),
        Aborted("stale"),
        ResourceExhausted("too much"),
        Unavailable("later"),
        Internal("bug"),
    ],
)
def test_error_survives_the_envelope(error: TrainyardError) -> None:
    back = from_body(error.http_status, to_body(error))
    assert type(back) is type(error)
    assert back.message == error.message
    assert back.violations == error.violations or not any(v.field for v in error.violations)


@pytest.mark.parametrize(("status", "kind"), [(404, NotFound), (429, Unavailable), (502, Unavailable), (418, Internal)])
def test_answer_without_an_envelope_still_becomes_an_error(status: int, kind: type[TrainyardError]) -> None:
    assert type(from_body(status, "<html>")) is kind
    assert str(status) in from_body(status, None).message


def test_text_of_a_warning_is_read_as_it_was_written() -> None:
    text = 'Did you mean "vision"? C:\\data'
    others = ['199 proxy "stale"', '299 a "escape \x1b[2J"', '299 a "caf\xe9"', "299 no text", '299 a "two", 299 b "c"']
    assert warnings_of([warning_value(text), *others]) == [text]
