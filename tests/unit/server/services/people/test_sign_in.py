"""Revoked sessions, on every server of a database."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select

from trainyard_server.domain.access.permissions import Role, Token
from trainyard_server.domain.access.sessions import LIFETIME, LONGEST, Session, Sessions
from trainyard_server.services.people import principals
from trainyard_server.services.people.principals import Principals, RevokedSessions
from trainyard_server.storage.db.base.people_models import UsedTokenRow
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.events.notifier import Notifier

NOW = datetime(2026, 11, 21, 15, 0, tzinfo=UTC)
ALICE = Token(Role.SUBMITTER, "alice", "alices-secret")
SESSIONS = Sessions(b"key")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.at(tmp_path, durable=False)
    yield store
    store.close()


def server(store: Store, notifier: Notifier | None = None) -> RevokedSessions:
    return RevokedSessions(store, notifier or Notifier(), lambda: NOW)


def waiting_for(session: Session, store: Store, notifier: Notifier) -> asyncio.Task[bool]:
    """The wait of a stream of the session."""
    known = Principals(store, [ALICE], server(store, notifier), notifier, lambda: NOW)
    principal = known.of_session(session)
    assert principal is not None
    return asyncio.create_task(known.wait_until_changed(principal, session))


def test_revoke_ends_every_cookie_of_the_session_and_no_other(store: Store) -> None:
    session, other = SESSIONS.open(ALICE.credential, NOW), SESSIONS.open(ALICE.credential, NOW)
    renewed = SESSIONS.renewed(session, NOW + LIFETIME / 2)
    assert renewed is not None
    first, second = server(store), server(store)
    first.revoke(renewed)
    first.revoke(session)  # idempotent
    with store.read() as reader:
        assert [second.is_revoked(one, reader) for one in (session, renewed, other)] == [True, True, False]
        (row,) = reader.session.scalars(select(UsedTokenRow)).all()
    assert session.nonce not in row.digest
    assert row.until == NOW + LONGEST


@pytest.mark.parametrize("is_notified", [True, False])
async def test_waiting_ends_with_a_notification_and_without_one(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_notified: bool
) -> None:
    monkeypatch.setattr(principals, "_POLL_S", 1000.0 if is_notified else 0.01)
    session, notifier = SESSIONS.open(ALICE.credential, NOW), Notifier()
    waiting = waiting_for(session, store, notifier)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await asyncio.to_thread(server(store, notifier if is_notified else None).revoke, session)
    async with asyncio.timeout(60):
        assert await waiting
