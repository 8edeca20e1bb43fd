"""Limits of the sign-ins that ask the issuer at a time, and what the waiting ones hold."""

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from anyio import to_thread

from trainyard_protocol.errors import TooManyRequests, Unauthenticated
from trainyard_server.capabilities.single_sign_on import single_sign_on
from trainyard_server.capabilities.single_sign_on.oidc import Attempt, Attempts
from trainyard_server.capabilities.single_sign_on.options import OidcOptions
from trainyard_server.capabilities.single_sign_on.single_sign_on import CONCURRENT, WAITING, SingleSignOn

CALLBACKS = 60
NOW = datetime(2024, 1, 1, tzinfo=UTC)


class BusyIssuer:
    """Answers no code before `go`, and then refuses it."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = threading.Semaphore(0)
        self.calls = 0

    def claims(self, code: str, attempt: Attempt) -> dict[str, Any]:
        self.calls += 1
        self.asked.release()
        assert self.go.wait(60)
        raise Unauthenticated("it was used before")


async def test_sign_ins_of_nobody_hold_few_threads_and_the_rest_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(single_sign_on, "_WAIT_S", 60.0)
    issuer, attempts = BusyIssuer(), Attempts(b"key")
    options = OidcOptions("https://accounts.example.com", "client", "https://t.example.com")
    signing = SingleSignOn(options, cast("Any", issuer), attempts, cast("Any", None), lambda: NOW)
    attempt = attempts.begin("/", NOW)
    finish = [
        asyncio.ensure_future(signing.finish(attempts.cookie_of(attempt), attempt.state, f"{number}", ""))
        for number in range(CALLBACKS)
    ]
    try:
        for _ in range(CONCURRENT):
            await asyncio.wait_for(asyncio.to_thread(issuer.asked.acquire), 60)
        refused = [task for task in finish if task.done()]
        assert len(refused) == CALLBACKS - CONCURRENT - WAITING
        assert {type(task.exception()) for task in refused} == {TooManyRequests}
        assert to_thread.current_default_thread_limiter().borrowed_tokens == CONCURRENT
        assert issuer.calls == CONCURRENT
    finally:
        issuer.go.set()
    answers = await asyncio.gather(*finish, return_exceptions=True)
    assert [type(answer) for answer in answers].count(Unauthenticated) == CONCURRENT + WAITING
