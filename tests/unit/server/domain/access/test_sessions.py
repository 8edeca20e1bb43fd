"""Browser sessions and sign-in codes: their signature, expiry and renewal."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from trainyard_server.domain.access.sessions import LIFETIME, LONGEST, Session, Sessions, cookie

NOW = datetime(2026, 11, 21, 15, 0, tzinfo=UTC)
ALICE = "person:alice@example.com"
SESSIONS = Sessions(b"key of the installation")


@given(at=st.integers(0, 400), to=st.characters(codec="ascii"))
def test_changed_cookie_is_no_other_session(at: int, to: str) -> None:
    """The last character of a signature has unused bits: some changes leave it valid, for the same session."""
    session = SESSIONS.open(ALICE, NOW)
    at %= len(session.value)
    changed = session.value[:at] + to + session.value[at + 1 :]
    assert SESSIONS.read(changed, NOW) in (None, session)
    if at < session.value.rindex("."):
        assert changed == session.value or SESSIONS.read(changed, NOW) is None


def test_signature_counts_for_its_purpose_only() -> None:
    session, code = SESSIONS.open(ALICE, NOW), SESSIONS.code(ALICE, NOW)
    assert SESSIONS.read_code(session.value, NOW) is None
    assert SESSIONS.read(code.text, NOW) is None
    seconds = str(int(code.expires.timestamp()))
    assert SESSIONS.read(SESSIONS._sign("code", "YQ==", seconds, seconds, "nonce"), NOW) is None


def test_session_is_renewed_after_half_of_its_lifetime_with_the_same_csrf_value() -> None:
    first = SESSIONS.open(ALICE, NOW)
    assert SESSIONS.renewed(first, NOW + LIFETIME / 2 - timedelta(seconds=1)) is None
    second = SESSIONS.renewed(first, NOW + LIFETIME / 2)
    assert second is not None
    assert second.expires == NOW + LIFETIME * 1.5
    assert second.csrf == first.csrf
    read = SESSIONS.read(second.value, second.expires - timedelta(seconds=1))
    assert read is not None
    assert read.credential == first.credential


def test_session_cannot_be_renewed_beyond_a_month() -> None:
    session: Session | None = SESSIONS.open(ALICE, NOW)
    while session is not None:
        last = session
        session = SESSIONS.renewed(last, last.expires - timedelta(seconds=1))
    assert last.expires == NOW + LONGEST
    assert SESSIONS.read(last.value, NOW + LONGEST) is None


def test_stream_lasts_until_the_session_can_be_renewed_and_never_longer() -> None:
    session = SESSIONS.open(ALICE, NOW)
    half = NOW + LIFETIME / 2
    assert session.stream_until(NOW) == session.stream_until(half - timedelta(seconds=1)) == half
    assert session.stream_until(half) == session.expires
    renewed = SESSIONS.renewed(session, half)
    assert renewed is not None
    assert renewed.stream_until(half) == half + LIFETIME / 2


def test_csrf_value_belongs_to_one_session_and_reveals_nothing_of_the_cookie() -> None:
    first, second = SESSIONS.open(ALICE, NOW), SESSIONS.open(ALICE, NOW)
    assert first.is_csrf(first.csrf)
    assert not first.is_csrf(second.csrf)
    assert not first.is_csrf("")
    assert not first.is_csrf("ä")
    assert first.csrf not in first.value
    assert first.value not in repr(first)


def test_cookie_is_http_only_and_same_site() -> None:
    session = SESSIONS.open(ALICE, NOW)
    plain = cookie("http", "localhost:1", session, NOW)
    assert plain == f"trainyard-1={session.value}; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax"
    assert cookie("https", "h", session, NOW).endswith("; HttpOnly; SameSite=Lax; Secure")
    assert cookie("http", "localhost:1", None, NOW) == "trainyard-1=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"
