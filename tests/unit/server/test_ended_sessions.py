"""A session that was ended is so for everybody on the database, whatever becomes of the news of it."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select

from trainyard_server.domain.permissions import Role, Token
from trainyard_server.domain.sessions import LIFETIME, LONGEST, Sessions
from trainyard_server.services import session_revocation as ended_sessions
from trainyard_server.services.session_revocation import EndedSessions
from trainyard_server.storage.db.models import SpentRow
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


def server(store: Store, notifier: Notifier | None = None) -> EndedSessions:
    return EndedSessions(store, notifier or Notifier(), lambda: NOW)


def test_end_is_that_of_every_cookie_of_the_session_and_of_no_other(store: Store) -> None:
    session, other = SESSIONS.open(ALICE, NOW), SESSIONS.open(ALICE, NOW)
    renewed = SESSIONS.renewed(session, NOW + LIFETIME / 2)
    assert renewed is not None
    here, there = server(store), server(store)
    here.end(renewed)
    here.end(session)  # once more does nothing
    assert [there.is_ended(one) for one in (session, renewed, other)] == [True, True, False]
    with store.read() as reader:
        (row,) = reader.session.scalars(select(SpentRow)).all()
    assert session.nonce not in row.digest
    assert row.until == NOW + LONGEST


async def test_who_waits_hears_of_it_at_once(store: Store) -> None:
    session, ended = SESSIONS.open(ALICE, NOW), server(store)
    waiting = asyncio.create_task(ended.until_ended(session))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await asyncio.to_thread(ended.end, session)
    async with asyncio.timeout(30):
        assert await waiting


async def test_who_waits_finds_it_also_where_the_news_was_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_sessions, "_LOOK_S", 0.01)
    session = SESSIONS.open(ALICE, NOW)
    waiting = asyncio.create_task(server(store).until_ended(session))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await asyncio.to_thread(server(store).end, session)  # by a server that tells nobody
    async with asyncio.timeout(30):
        assert await waiting


async def test_close_of_the_server_is_no_end(store: Store) -> None:
    session, notifier = SESSIONS.open(ALICE, NOW), Notifier()
    waiting = asyncio.create_task(server(store, notifier).until_ended(session))
    await asyncio.sleep(0.01)
    notifier.close()
    async with asyncio.timeout(30):
        assert not await waiting
    assert not notifier._subscriptions
