"""Sessions hold what they say, for as long as they say, and for nobody who has not the token."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard_server.domain.permissions import Caller, Role, Token
from trainyard_server.domain.sessions import (
    LIFETIME,
    LONGEST,
    Session,
    Sessions,
    cookie,
    cookie_name,
)

NOW = datetime(2026, 11, 21, 15, 0, tzinfo=UTC)
ALICE = Token(Role.SUBMITTER, "alice", "alices-secret")
ADMIN = Token(Role.ADMIN, "admin", "admin-secret")
SESSIONS = Sessions([ADMIN, ALICE])


def test_session_says_who_it_is_until_it_is_over() -> None:
    value = SESSIONS.open(ALICE, NOW).value
    read = SESSIONS.read(value, NOW + LIFETIME - timedelta(seconds=1))
    assert read is not None
    assert read.caller == Caller(Role.SUBMITTER, "alice")
    assert SESSIONS.read(value, NOW + LIFETIME) is None


def test_another_server_with_the_same_tokens_takes_it_and_one_with_another_token_does_not() -> None:
    value = SESSIONS.open(ALICE, NOW).value
    assert Sessions([ALICE]).read(value, NOW) is not None
    assert Sessions([ADMIN, Token(Role.SUBMITTER, "alice", "changed")]).read(value, NOW) is None
    assert Sessions([ADMIN]).read(value, NOW) is None


def test_who_has_two_tokens_has_the_sessions_of_both() -> None:
    both = Sessions([ALICE, Token(Role.SUBMITTER, "alice", "newer")])
    for secret in ("alices-secret", "newer"):
        assert both.read(both.open(Token(Role.SUBMITTER, "alice", secret), NOW).value, NOW) is not None


def test_role_of_a_session_is_that_of_its_token() -> None:
    """Who was made an admin meanwhile, with the same secret, signs in again."""
    value = SESSIONS.open(ALICE, NOW).value
    assert Sessions([Token(Role.ADMIN, "alice", "alices-secret")]).read(value, NOW) is None


@settings(deadline=None)
@given(at=st.integers(0, 400), to=st.characters(codec="ascii"))
def test_changed_cookie_is_none(at: int, to: str) -> None:
    value = SESSIONS.open(ALICE, NOW).value
    at %= len(value)
    changed = value[:at] + to + value[at + 1 :]
    if changed != value:
        assert SESSIONS.read(changed, NOW) is None


@settings(deadline=None)
@given(st.text(max_size=60))
def test_nonsense_is_no_session(text: str) -> None:
    assert SESSIONS.read(text, NOW) is None


@pytest.mark.parametrize("said", ["W10", "bnVsbA", "WyJhZG1pbiIsImFkbWluIiwxZTk5OSwxLCJ4Il0", "e30", "MQ"])
def test_payload_of_another_shape_is_no_session(said: str) -> None:
    assert SESSIONS.read(f"{said}.mac", NOW) is None


def test_session_is_renewed_when_half_of_it_is_over_and_pages_stay_good() -> None:
    first = SESSIONS.open(ALICE, NOW)
    assert SESSIONS.renewed(first, NOW + LIFETIME / 2 - timedelta(seconds=1)) is None
    second = SESSIONS.renewed(first, NOW + LIFETIME / 2)
    assert second is not None
    assert second.expires == NOW + LIFETIME * 1.5
    assert second.csrf == first.csrf
    read = SESSIONS.read(second.value, second.expires - timedelta(seconds=1))
    assert read is not None
    assert read.caller == first.caller


def test_session_ends_for_good_a_month_after_the_sign_in() -> None:
    session: Session | None = SESSIONS.open(ALICE, NOW)
    while session is not None:
        last = session
        session = SESSIONS.renewed(last, last.expires - timedelta(seconds=1))
    assert last.expires == NOW + LONGEST
    assert SESSIONS.read(last.value, NOW + LONGEST) is None


def test_stream_goes_on_until_the_session_can_get_more_time_and_never_beyond_it() -> None:
    session = SESSIONS.open(ALICE, NOW)
    half = NOW + LIFETIME / 2
    assert session.stream_until(NOW) == session.stream_until(half - timedelta(seconds=1)) == half
    assert session.stream_until(half) == session.expires
    renewed = SESSIONS.renewed(session, half)
    assert renewed is not None
    assert renewed.stream_until(half) == half + LIFETIME / 2


def test_csrf_value_is_of_one_session_and_tells_nothing_of_the_cookie() -> None:
    first, second = SESSIONS.open(ALICE, NOW), SESSIONS.open(ALICE, NOW)
    assert first.is_csrf(first.csrf)
    assert not first.is_csrf(second.csrf)
    assert not first.is_csrf("")
    assert not first.is_csrf("ä")
    assert first.csrf not in first.value
    assert "secret" not in repr(SESSIONS.open(ALICE, NOW))
    assert first.value not in repr(first)


def test_token_is_found_by_its_text_alone() -> None:
    assert SESSIONS.token("alices-secret") == ALICE
    for wrong in ("", "alices-secre", "alices-secrets", "ä"):
        assert SESSIONS.token(wrong) is None
    assert Sessions([Token(Role.ADMIN, "admin", "")]).token("") is None


@pytest.mark.parametrize(
    ("scheme", "host", "name"),
    [
        ("http", "localhost:8470", "trainyard-8470"),
        ("http", "[::1]:8470", "trainyard-8470"),
        ("http", "[::1]", "trainyard-80"),
        ("http", "", "trainyard-80"),
        ("http", "host:evil;x", "trainyard-80"),
        ("https", "train.example.com", "__Host-trainyard-443"),
        ("https", "train.example.com:8443", "__Host-trainyard-8443"),
    ],
)
def test_cookie_is_of_one_port(scheme: str, host: str, name: str) -> None:
    assert cookie_name(scheme, host) == name


def test_cookie_is_kept_from_scripts_and_other_sites() -> None:
    session = SESSIONS.open(ALICE, NOW)
    plain = cookie("http", "localhost:1", session, NOW)
    assert plain == f"trainyard-1={session.value}; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax"
    assert cookie("https", "h", session, NOW).endswith("; HttpOnly; SameSite=Lax; Secure")
    assert (
        cookie("http", "localhost:1", None, NOW) == "trainyard-1=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"
    )
