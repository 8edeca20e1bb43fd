import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.errors import InvalidArgument
from trainyard_server.domain.filters.filter_syntax import And, Not, Or, Term
from trainyard_server.storage.db.queries.filters import parse, to_sql

QUEUED, RUNNING, JOB_A = Term("state", "=", "QUEUED"), Term("state", "=", "RUNNING"), Term("jobId", "=", "a")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("  ", None),
        ("jobId:census*", Term("jobId", ":", "census*")),
        ("job_id = x", Term("jobId", "=", "x")),
        ("jobId:rnn* AND state:FAILED", And((Term("jobId", ":", "rnn*"), Term("state", ":", "FAILED")))),
        ("jobId:a state=failed", And((Term("jobId", ":", "a"), Term("state", "=", "FAILED")))),
        ("state=QUEUED OR state=RUNNING", Or((QUEUED, RUNNING))),
        ("state=QUEUED OR state=RUNNING AND jobId=a", And((Or((QUEUED, RUNNING)), JOB_A))),
        ("jobId=a state=QUEUED OR NOT state=RUNNING", And((JOB_A, Or((QUEUED, Not(RUNNING)))))),
        ("(state=QUEUED OR state=RUNNING) AND jobId=a", And((Or((QUEUED, RUNNING)), JOB_A))),
        (
            "state:(QUEUED running) AND jobId=(a)",
            And((Or((Term("state", ":", "QUEUED"), Term("state", ":", "RUNNING"))), JOB_A)),
        ),
        (
            'labels.team=("a b" OR c "OR")',
            Or((Term("labels.team", "=", "a b"), Term("labels.team", "=", "c"), Term("labels.team", "=", "OR"))),
        ),
        ("NOT state=QUEUED", Not(QUEUED)),
        ("-state:QUEUED", Not(Term("state", ":", "QUEUED"))),
        ("owner=alice@example.com", Term("owner", "=", "alice@example.com")),
        ("labels.team=vision", Term("labels.team", "=", "vision")),
        ("labels.a-b:*", Term("labels.a-b", ":", "*")),
        ('jobId="a b"', Term("jobId", "=", "a b")),
        (r"jobId='a \'b\"'", Term("jobId", "=", "a 'b\"")),
        ("errorMessage:don't", Term("errorMessage", ":", "don't")),
        (r'jobId="a\"b"', Term("jobId", "=", 'a"b')),
        ("createTime>2026-11-20T10:00:00Z", Term("createTime", ">", "2026-11-20T10:00:00Z")),
        ('createTime >= "2026-11-20T10:00:00Z"', Term("createTime", ">=", "2026-11-20T10:00:00Z")),
        ("createTime<2026-11-20", Term("createTime", "<", "2026-11-20")),
    ],
)
def test_filter_that_is_good_is_read(text: str, expected: object) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("jobId", 6, "ends where one of"),
        ("jobId:", 7, "ends where a value"),
        ("jobId:a AND", 12, "ends where a condition"),
        ("jobid:a", 1, "fields are jobId, state"),
        ("state:FAILD", 7, 'Did you mean "FAILED"?'),
        ("(jobId:a", 9, "ends where a closing parenthesis"),
        ("jobId:a)", 8, "does not belong here"),
        ("jobId>a", 6, "compares times"),
        ("createTime>yesterday", 12, "is not a time"),
        ("createTime>0001-01-01T00:00:00+14:00", 12, "is not a time"),  # beyond the calendar
        ("(jobId:a = b)", 10, "a field's name is expected"),
        ("jobId:a ! b", 9, "is not understood"),
        ("jobId:'a b", 7, "is not understood"),
        ("AND", 1, "a field's name is expected"),
        ("labels.:x", 1, "labels.KEY"),
        ("jobId:(", 8, "ends where a value"),
        ("jobId:(a", 9, "ends where a closing parenthesis"),
        ("jobId:(a OR )", 13, "a value is expected"),
        ("jobId:(a AND b)", 10, "are separated by OR"),
        ("jobId:(a (b))", 10, "a value is expected"),
        ("jobId!=(a b)", 8, "follow : or ="),
        ("state:(QUEUED FAILD)", 15, 'Did you mean "FAILED"?'),
    ],
)
def test_filter_that_is_bad_shows_the_column(text: str, column: int, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(text)
    message = caught.value.message
    assert f"Field: filter Error: column {column}: " in message
    assert says in message
    assert message.endswith(f"{text}\n{' ' * (column - 1)}^")


@pytest.mark.parametrize(
    "text", ["NOT " * 900 + "jobId:a", "(" * 3900, " OR ".join(["jobId:a"] * 201), f"jobId:({'a ' * 200})"]
)
def test_filter_of_too_many_terms_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="at most 200 terms"):
        parse(text)


def test_filter_is_bounded_in_length() -> None:
    with pytest.raises(InvalidArgument, match="may have 4000 characters; this has 4001"):
        parse("state:" + "*" * 3995)


def test_filter_of_many_stars_takes_linear_time() -> None:
    """A regular expression made of the first would not end before the sun does."""
    for pattern, states in (("*" * 3000 + "Z", ""), ("*A" * 1000, ""), ("*" * 1000 + "NG", "PREPARING, CANCELLING")):
        condition = to_sql(parse(f"state:{pattern}") or Not(Term("state", "=", "")))
        compiled = str(condition.compile(compile_kwargs={"literal_binds": True}))
        assert all(state in compiled for state in states.split(", "))
        assert bool(states) == ("PREPARING" in compiled)


@given(st.text(alphabet='jobIdstate:=*()<>!- ANDORT"\\lbs._Z12', max_size=40))
def test_filter_of_any_text_is_read_or_refused(text: str) -> None:
    try:
        expression = parse(text)
    except InvalidArgument:
        return
    if expression is not None:
        assert str(to_sql(expression))
