"""Hostile requests to every route: none is an error of the server, none shows a traceback, every answer is bounded."""

import asyncio
import itertools
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from anyio.to_thread import current_default_thread_limiter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts

from integration.api.api_support import ADMIN, AGENT, ALICE, Clock, Server, running_agent, server

TEXTS = (
    *("", "%00", "%FF%FE", "..%2F..%2Fetc%2Fpasswd", "%F0%9F%92%A5", "%1B%5B31m", "%3Cscript%3E%27%22", "=&;,"),
    *("%ED%A0%80", "%E2%80%A8", "%0D%0AX-Injected:%201"),  # half a surrogate pair, a line end to JavaScript
    *("x" * 4000, "*" * 3000 + "Z", "[" * 3000, "-1", "9" * 30, "9" * 5000, str(2**63), str(2**64), "1e999", "nan"),
    *("0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00"),
)
_VALUES: dict[str, Sequence[bytes]] = {
    "authorization": (b"", b"Bearer", b"Bearer \xff\xfe", b"bearer " + b"x" * 9000, b"Basic \xff"),
    "cookie": (
        *(
            b"trainyard-80=" + value
            for value in (b"\xed\xa0\x80", b"\xff.\xff.\xff", b'"\\355\\240\\200"', b"1.2.3.4.5.6")
        ),
        b"trainyard-80=99999999999999999999.99999999999999999999.x.y",
        *(b"trainyard-80=" + b"." * 3000, b"=;=;=;;;,", b"trainyard-80=a; trainyard-80=b"),
    ),
    "host": (b"", b"[", b"[::1", b"a:b:c", b"\xff", b"a" * 3000, b"x:99999999", b"@/?#"),
    "origin": (b"http://[", b"null", b"\xff", b"x" * 3000),
    "sec-fetch-site": (b"cross-site", b"\xff"),
    "x-csrf-token": (b"\xff\xed\xa0\x80", b"x" * 3000),
    "last-event-id": (b"-1", b"9" * 400, b"9" * 5000, b"\xb2", b"1_0", b"\xff", b" 1 "),
    "accept": (b"text/html", b"\xff", b"*/*;q=" + b"9" * 400, b"," * 3000),
    "accept-encoding": (b"gzip;q=nan", b"\xff", b"," * 3000),
    "content-type": (b"application/json; charset=\xff", b"multipart/form-data", b"x"),
    "content-length": (b"-1", b"\xb2", b"9" * 4400, b"1e3"),
    "if-none-match": (b"\xff", b'"' * 3000),
    "if-modified-since": (b"\xff", b"Mon, 00 Jan 0000 00:00:00 GMT"),
    "range": (b"bytes=-1", b"bytes=9-1", b"bytes=" + b"0-1," * 900, b"\xff"),
}
HEADERS = [(name, value) for name, values in _VALUES.items() for value in values]
BODIES: Sequence[bytes] = (
    *(b"{", b"null", b"[]", b'""', b"1e999", b"NaN", b"\xff\xfe{}", b"\xef\xbb\xbf{}"),
    *('{"jobId": "a"}'.encode("utf-16"), b"[" * 50_000, b'{"a":' * 20_000, b'{"jobId": ' + b"9" * 5000 + b"}"),
    b'{"jobId": "\\ud800"}',
    b'{"\\u200b": 1, "jobId": "a", "trainingInput": {"": 1, "\\u200b": 1, "a.b": 2, "a[0]": 3}}',
    b'{"jobId": "a", "trainingInput": {"pythonModule": "\\u0000"}, "labels": {"\\u0000": "x"}}',
    b'{"jobId": "a", "trainingInput": {"workerCount": NaN, "parameterServerCount": Infinity, "region": -Infinity}}',
    b'{"jobId": "a", "trainingInput": {"workerCount": "' + b"9" * 5000 + b'"}}',
    b'{"jobId": "a", "trainingInput": {"workerCount": 1e308, "scheduling": {"maxRunningTime": "999999999999s"}}}',
    b'{"jobId": {"a": 1}, "trainingInput": [], "labels": [], "etag": {}}',
    b'{"jobId": "a", "trainingInput": {"hyperparameters": {"params": [{"discreteValues": ["1e999", "nan"]}]}}}',
    b'{"labels": {"a": "\\ud83d"}, "etag": "\\ud83d"}',
    b'{"config": "a: &a [*a]"}',
    b'{"config": "a: !!python/object:os.system x"}',
    b'{"config": "a: 1:99:99:99.9_9\\nb: 0x_\\nc: 0b\\nd: .inf\\ne: 9e9999\\n"}',
    b'{"config": "\\u0000\\u0085\\u2028\\ufeff", "format": "json"}',
    b'{"config": "a: 1", "args": "\\u0000 \\\\", "labels": {"": ""}, "jobId": "\\u2028", "packageUris": ["\\u0000"]}',
    b'{"config": "a: 1", "args": [' + b"{}," * 5000 + b"{}]}",
    b"token=%FF&next=%2F%2Fevil&csrf=\xff",
    *(b"code=" + b"x" * 3000 + b"&next=%0D%0A", b"&" * 5000, b"a=1&" * 200),
)
ROW = re.compile(r"\{(\w+)(?::\w+)?\}")
LARGEST = 2**20
LARGEST_REFUSAL = 64 * 2**10


@dataclass(frozen=True)
class Attack:
    method: str
    path: str
    query: str = ""
    headers: tuple[tuple[str, bytes], ...] = ()
    body: bytes = b""

    def __str__(self) -> str:
        shown = [(name, value[:60]) for name, value in self.headers if name != "authorization"]
        return f"{self.method} {self.path[:90]}?{self.query[:90]} {shown} {self.body[:120]!r}"


def attacks(api: Server) -> Iterator[Attack]:
    """A table of requests: each route with a few of the hostile texts and bodies, by turns, and each kind of route with
    every header."""
    kinds: set[str] = set()
    for number, (method, path, queries) in enumerate(sorted(routes(api))):
        credentials = credentials_for(path)
        names = ROW.findall(path)
        whole = filled(path, {})
        for name, text in itertools.product(names, TEXTS[number % 6 :: 6]):
            if text:
                yield Attack(method, filled(path, {name: text}), "", credentials)
        for name, text in itertools.product(queries, TEXTS[number % 3 :: 3]):
            yield Attack(method, whole, f"{name}={text}&{name}={text}", credentials)
        if method != "GET" and not whole.endswith((":cancel", ":mend")):
            for body in BODIES if whole.endswith(("/jobs", ":check")) else BODIES[number % 6 :: 6]:
                kind = b"application/x-www-form-urlencoded" if b"&" in body else b"application/json"
                yield Attack(method, whole, "updateMask=labels,etag", (*credentials, ("content-type", kind)), body)
        kind_of_route = f"{method} {path.split('/')[1]} {len(names)}"
        if kind_of_route not in kinds and not whole.endswith(":cancel"):
            kinds.add(kind_of_route)
            for name, value in HEADERS:
                others = credentials if name not in ("authorization", "cookie") else ()
                yield Attack(method, whole, "", (*others, (name, value)), b"{}")


def credentials_for(path: str) -> tuple[tuple[str, bytes], ...]:
    headers = AGENT if path.startswith("/agent/") else ADMIN
    return tuple((name.lower(), value.encode()) for name, value in headers.items())


def routes(api: Server) -> set[tuple[str, str, tuple[str, ...]]]:
    """Method, path and the names of the query's parameters of each route of the application."""
    found = set()
    for context in iter_route_contexts(api.app.routes):
        route = context.original_route
        names = tuple(sorted(query_names(route.dependant))) if isinstance(route, APIRoute) else ()
        found |= {(method, context.path or "", names) for method in context.methods or () if method != "HEAD"}
    return found


def query_names(dependant: Dependant) -> set[str]:
    names = {field.alias for field in dependant.query_params}
    return names.union(*map(query_names, dependant.dependencies))


def filled(path: str, values: dict[str, str]) -> str:
    """The path of a route with values, by default those of a job that runs."""
    usual = {"project": "p", "job_id": "job", "task": "master-replica-0", "filename": "a-1.tar.gz", "sha256": "0" * 64}
    return ROW.sub(lambda match: values.get(match[1]) or usual.get(match[1], "x"), path)


async def answer(api: Server, attack: Attack, receive: Callable[[], Awaitable[Any]] | None = None) -> tuple[int, bytes]:
    """Status and body, as uvicorn would call the application. The client leaves after its request."""
    messages: list[Any] = [{"type": "http.request", "body": attack.body, "more_body": False}]
    sent: list[Any] = []

    async def receive_request() -> Any:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.encode(), value) for name, value in attack.headers]
    if not any(name == b"host" for name, _ in headers):
        headers.append((b"host", b"server"))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": attack.method,
        "scheme": "http",
        "path": unquote(attack.path),
        "raw_path": attack.path.encode(),
        "query_string": attack.query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    await api.app(scope, receive or receive_request, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"] if sent else 0, body


async def failures(api: Server, table: Sequence[Attack]) -> list[str]:
    wrong = []
    for attack in table:
        try:
            status, body = await answer(api, attack)
        except Exception as error:  # noqa: BLE001 - the framework raises what it has answered with 500
            wrong.append(f"{type(error).__name__}: {attack}")
            continue
        largest = LARGEST_REFUSAL if status >= 400 else LARGEST
        if (status >= 500 and status != 501) or len(body) > largest or b"Traceback (most" in body:
            wrong.append(f"{status}, {len(body)} bytes: {attack}")
    return wrong


def test_no_hostile_request_is_an_error_of_the_server(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with server(tmp_path, clock, requests_per_s=0) as api, caplog.at_level(logging.ERROR):
        agent = running_agent(api)
        agent.log("a line", json.dumps({"event": "progress", "step": 1, "loss": 0.5}))
        table = list(attacks(api))
        assert len(table) > 1_000
        wrong = api.client.run(failures, api, table)
        assert not wrong, f"{len(wrong)} of {len(table)}:\n" + "\n".join(wrong[:40])
        assert not [record.getMessage() for record in caplog.records if record.exc_info]
        assert api.detail()["job"]["state"] == "RUNNING"


async def held_without_bodies(api: Server, table: Sequence[Attack]) -> tuple[int, int, int]:
    """Send the heads of all requests, and no body. The number of those that wait for it, and what they hold together:
    threads, and connections to the database."""
    waiting: set[int] = set()
    gone = asyncio.Event()

    async def send_head(number: int, attack: Attack) -> None:
        async def receive() -> Any:
            waiting.add(number)
            await gone.wait()
            return {"type": "http.disconnect"}

        await answer(api, attack, receive)

    requests = [asyncio.create_task(send_head(*numbered)) for numbered in enumerate(table)]
    async with asyncio.timeout(60):
        while not all(request.done() or n in waiting for n, request in enumerate(requests)):
            await asyncio.sleep(0.01)
    database = api.app.state.use_cases.backend.store._engine.pool
    threads = current_default_thread_limiter()
    with suppress(TimeoutError):  # what the answered requests have held is given back a moment later
        async with asyncio.timeout(60):
            while threads.borrowed_tokens or database.checkedout():
                await asyncio.sleep(0.01)
    held = (len(waiting), threads.borrowed_tokens, database.checkedout())
    gone.set()
    await asyncio.gather(*requests, return_exceptions=True)
    return held


def test_requests_that_wait_for_their_bodies_hold_no_thread_and_no_connection_to_the_database(
    tmp_path: Path, clock: Clock
) -> None:
    table = []
    with server(tmp_path, clock, requests_per_s=0) as api:
        for method, path, _ in sorted(routes(api)):
            if method in ("POST", "PUT", "PATCH"):
                headers = (*credentials_for(path), ("content-length", b"1000"))
                table += [Attack(method, filled(path, {}), "", headers)] * 5
        waiting, threads, connections = api.client.run(held_without_bodies, api, table)
    assert waiting > 50, "more than there are threads"
    assert (threads, connections) == (0, 0)


PART = b" " * 2**18
LIMITS = {
    "/trainyard/v1/tokens": 2**20,  # a route with a model
    "/v1/projects/p/jobs": 2**20,  # one with plain JSON
    "/agent/v1/usage": 4 * 2**20,  # one with a limit of its own
}


async def refusal_of_an_endless_body(api: Server, path: str) -> tuple[int, int, str]:
    """The status and the message of a call whose body never ends, and how many bytes of it were read."""
    read = 0
    sent: list[MutableMapping[str, Any]] = []

    async def endless() -> MutableMapping[str, Any]:
        nonlocal read
        read += len(PART)
        return {"type": "http.request", "body": PART, "more_body": True}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await api.app(_scope(path, AGENT if path.startswith("/agent/") else ALICE), endless, send)
    answer = json.loads(b"".join(message.get("body", b"") for message in sent))
    return sent[0]["status"], read, answer["error"]["message"]


@pytest.mark.parametrize(("path", "limit"), LIMITS.items())
async def test_body_is_read_no_further_than_its_limit(api: Server, path: str, limit: int) -> None:
    message = f"The request's body is larger than the limit of {limit} bytes."
    assert await refusal_of_an_endless_body(api, path) == (413, limit + len(PART), message)


def _scope(path: str, headers: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [
            (name.lower().encode(), value.encode()) for name, value in {"Host": "localhost", **headers}.items()
        ],
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
    }
