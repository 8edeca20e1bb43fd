"""Event streams end with their session; those of programs continue."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from integration.api.api_support import ADMIN, TOKENS, Server, eventually, running_agent, serving
from trainyard_server.domain.access.permissions import Token
from trainyard_server.domain.access.sessions import LIFETIME, Session, cookie_name
from trainyard_server.services.people.principals import RevokedSessions

LOGS = "/trainyard/v1/projects/p/jobs/job/logs?follow=true"
PATIENCE_S = 60


class Follower:
    """Reads a stream, in a thread, until it ends."""

    def __init__(self, url: str, path: str, headers: dict[str, str]) -> None:
        self.text = ""
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read, args=(url + path, headers), daemon=True)
        self._thread.start()

    def _read(self, url: str, headers: dict[str, str]) -> None:
        try:
            with httpx.stream("GET", url, headers=headers, trust_env=False, timeout=PATIENCE_S) as answer:
                assert answer.status_code == 200
                for part in answer.iter_text():
                    self.text += part
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def begun(self) -> "Follower":
        eventually(lambda: "event: " in self.text, PATIENCE_S)
        return self

    def end(self) -> str:
        self._thread.join(PATIENCE_S)
        assert self.over, "the stream goes on"
        assert self.error is None, "it ends as a stream should, and is not broken off"
        return self.text


def cookie(url: str, session: Session) -> dict[str, str]:
    return {"Cookie": f"{cookie_name('http', url.removeprefix('http://'))}={session.value}"}


def sign_out(url: str, session: Session) -> None:
    headers = cookie(url, session) | {"X-CSRF-Token": session.csrf}
    assert httpx.post(f"{url}/sign-out", headers=headers, trust_env=False, timeout=60).status_code == 303


@contextmanager
def followed(api: Server) -> Iterator[str]:
    """A server with a job that runs, behind a socket. Nothing of a stream is left there at the end."""
    running_agent(api)
    with serving(api.app) as url:
        yield url
        notifier = api.use_cases.backend.notifier
        eventually(lambda: not any(topic.startswith("session:") for topic in notifier._subscriptions))


def opened(api: Server, token: Token = TOKENS[0]) -> Session:
    return api.use_cases.sessions.open(token.credential, api.clock())


def test_sign_out_ends_the_streams_of_the_session_only(api: Server) -> None:
    mine, others = opened(api), opened(api)
    with followed(api) as url:
        streams = [Follower(url, path, cookie(url, mine)).begun() for path in ("/live/", LOGS) for _ in range(2)]
        rest = [
            Follower(url, path, headers).begun()
            for path in ("/live/", LOGS)
            for headers in (cookie(url, others), ADMIN)
        ]
        sign_out(url, mine)
        for stream in streams:
            assert stream.end().endswith("event: over\ndata:\n\n")
        assert not any(stream.over for stream in rest)
        api.use_cases.backend.notifier.close()
        for stream in rest:
            assert "event: over" not in stream.end()


def test_stream_ends_early_so_that_its_reader_renews_the_session(api: Server) -> None:
    half = api.clock() - LIFETIME / 2
    session = api.use_cases.sessions.open(TOKENS[0].credential, half + timedelta(seconds=1))
    with followed(api) as url:
        assert Follower(url, "/live/", cookie(url, session)).end().endswith("event: over\ndata:\n\n")
        api.clock.advance(1)
        answer = httpx.get(f"{url}/trainyard/v1/me", headers=cookie(url, session), trust_env=False, timeout=60)
        assert "Max-Age=43200" in answer.headers["set-cookie"]
        again = Follower(url, "/live/", cookie(url, session)).begun()
        sign_out(url, session)
        again.end()


def test_stream_ends_when_revocation_cannot_be_checked(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(api)
    with followed(api) as url:
        stream = Follower(url, "/live/", cookie(url, session)).begun()
        monkeypatch.setattr(RevokedSessions, "is_revoked", _away)
        api.use_cases.backend.notifier.wake_all()
        stream.end()


def test_sessions_get_503_while_revocation_cannot_be_checked(api: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    session = api.session("admin")
    monkeypatch.setattr(RevokedSessions, "is_revoked", _away)
    me = "/trainyard/v1/me"
    calls = (("GET", "/"), ("GET", "/sign-in"), ("GET", me), ("POST", "/sign-in"), ("POST", "/sign-out"))
    for accept, (method, path) in itertools.product(("*/*", "text/html"), calls):
        data = {"token": "admin-secret"} if method == "POST" else None
        headers = session | {"Accept": accept}
        answer = api.client.request(method, path, data=data, headers=headers)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5"), (method, path)
        assert "the database does not answer" in answer.text
        assert ("<html" in answer.text) is (accept == "text/html" and path != me)
    style = api.client.get("/sign-in").text.partition('rel="stylesheet" href="')[2].partition('"')[0]
    for path in ("/healthz", style):  # for anybody, whatever the cookie
        assert api.client.get(path, headers=headers).status_code == 200, path
    assert api.client.get("/trainyard/v1/me", headers=ADMIN).status_code == 200


def _away(*_: object) -> bool:
    raise OperationalError("SELECT", {}, ConnectionError("gone"))
