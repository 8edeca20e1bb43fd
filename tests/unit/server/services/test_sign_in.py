"""Revoked sessions, on every server of a database; the rate limit for failed sign-ins."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from trainyard_server.domain.permissions import Role, Token
from trainyard_server.domain.sessions import LIFETIME, LONGEST, Sessions
from trainyard_server.services import sign_in
from trainyard_server.services.sign_in import RevokedSessions, SignInRateLimit
from trainyard_server.storage.db.models import UsedTokenRow
from trainyard_server.storage.db.repository import Store
from trainyard_server.storage.events.notifier import Notifier

NOW = datetime(2026, 11, 21, 15, 0, tzinfo=UTC)
ALICE = Token(Role.SUBMITTER, "alice", "alices-secret")
SESSIONS = Sessions([ALICE])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.at(tmp_path, durable=False)
    yield store
    store.close()


def server(store: Store, notifier: Notifier | None = None) -> RevokedSessions:
    return RevokedSessions(store, notifier or Notifier(), lambda: NOW)


def test_revoke_ends_every_cookie_of_the_session_and_no_other(store: Store) -> None:
    session, other = SESSIONS.open(ALICE, NOW), SESSIONS.open(ALICE, NOW)
    renewed = SESSIONS.renewed(session, NOW + LIFETIME / 2)
    assert renewed is not None
    first, second = server(store), server(store)
    first.revoke(renewed)
    first.revoke(session)  # idempotent
    assert [second.is_revoked(one) for one in (session, renewed, other)] == [True, True, False]
    with store.read() as reader:
        (row,) = reader.session.scalars(select(UsedTokenRow)).all()
    assert session.nonce not in row.digest
    assert row.until == NOW + LONGEST


async def test_waiting_ends_with_the_notification(store: Store) -> None:
    session, revoked = SESSIONS.open(ALICE, NOW), server(store)
    waiting = asyncio.create_task(revoked.wait_until_revoked(session))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await asyncio.to_thread(revoked.revoke, session)
    async with asyncio.timeout(30):
        assert await waiting


async def test_waiting_ends_when_the_notification_is_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in, "_REVOCATION_POLL_S", 0.01)
    session = SESSIONS.open(ALICE, NOW)
    waiting = asyncio.create_task(server(store).wait_until_revoked(session))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await asyncio.to_thread(server(store).revoke, session)  # by a server without notifications to this one
    async with asyncio.timeout(30):
        assert await waiting


async def test_waiting_ends_without_a_revocation_when_the_server_closes(store: Store) -> None:
    session, notifier = SESSIONS.open(ALICE, NOW), Notifier()
    waiting = asyncio.create_task(server(store, notifier).wait_until_revoked(session))
    await asyncio.sleep(0.01)
    notifier.close()
    async with asyncio.timeout(30):
        assert not await waiting
    assert not notifier._subscriptions


def test_rate_limit_makes_a_client_wait_until_its_first_failure_is_a_minute_old() -> None:
    rate_limit = SignInRateLimit(limit=3)
    for second in range(3):
        assert rate_limit.wait_s("a", NOW + timedelta(seconds=second)) == 0
        rate_limit.record_failure("a", NOW + timedelta(seconds=second))
    assert rate_limit.wait_s("a", NOW + timedelta(seconds=2)) == 58
    assert rate_limit.wait_s("b", NOW + timedelta(seconds=2)) == 0
    assert rate_limit.wait_s("a", NOW + timedelta(seconds=60)) == 0
    rate_limit.record_failure("a", NOW + timedelta(seconds=60))
    assert rate_limit.wait_s("a", NOW + timedelta(seconds=60)) == 1


def test_rate_limit_remembers_a_limited_number_of_clients() -> None:
    rate_limit = SignInRateLimit(limit=1, clients=2)
    for client in ("a", "b", "a", "c"):
        rate_limit.record_failure(client, NOW)
    assert {client for client in "abc" if rate_limit.wait_s(client, NOW)} == {"a", "c"}
