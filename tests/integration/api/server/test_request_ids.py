"""Ids of requests: in answers, in the lines of the log, and in what the command line says of a failure."""

import io
import json
import logging
from collections.abc import Iterator

import httpx
import pytest

from integration.api.api_support import ADMIN, TOKENS, Server
from trainyard_cli.v1_client import error_of
from trainyard_protocol import service_log
from trainyard_protocol.errors import Internal, NotFound
from trainyard_protocol.service_log import LogFormat


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    yield stream
    for handler in list(logging.getLogger().handlers):
        if isinstance(handler, service_log.ServiceLogHandler):
            logging.getLogger().removeHandler(handler)


def test_request_has_one_id_and_a_failure_is_found_by_it(
    api: Server, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    service_log.set_up("json", log)
    given = api.client.get("/healthz", headers={"X-Request-Id": "from-the-proxy.7"})
    assert given.headers["X-Request-Id"] == "from-the-proxy.7"
    for bad in ("x" * 65, "a b", '"'):
        assert api.client.get("/healthz", headers={"X-Request-Id": bad}).headers["X-Request-Id"] != bad

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("of the inside")

    monkeypatch.setattr(api.use_cases.jobs, "get", broken)
    answer = api.client.get("/v1/projects/p/jobs/job", headers=ADMIN)
    assert answer.status_code == 500
    entry = next(entry for entry in map(json.loads, log.getvalue().splitlines()) if "exception" in entry)
    assert entry["request"] == answer.headers["X-Request-Id"]
    assert entry["level"] == "ERROR"
    assert "RuntimeError: of the inside" in entry["exception"]
    error = error_of(httpx.Response(500, json=answer.json(), headers=answer.headers))
    assert isinstance(error, Internal)
    assert f"(request {entry['request']}, as in the server's log)" in error.message
    missing = httpx.Response(404, json={"error": {"code": 404, "status": "NOT_FOUND", "message": "none"}})
    assert error_of(missing).message == "none"
    assert isinstance(error_of(missing), NotFound)


@pytest.mark.parametrize(("log_format", "ending"), [("text", " [request abc]"), ("json", '"request": "abc"}')])
def test_lines_have_the_request_and_the_last_ones_are_kept(
    log: io.StringIO, log_format: LogFormat, ending: str
) -> None:
    service_log.set_up(log_format, log)
    token = service_log.request_id.set("abc")
    logging.getLogger("a.b").warning('%s "quoted"', "text")
    (line,) = log.getvalue().splitlines()
    assert (line.endswith(ending), service_log.recent[-1]) == (True, line)
    logging.getLogger("a.b").error("GET / failed", exc_info=RuntimeError("of the inside"))
    service_log.request_id.reset(token)
    if log_format == "text":  # the request is behind the first line of a traceback
        _, first, *_, last = log.getvalue().splitlines()
        assert first.endswith("ERROR a.b: GET / failed [request abc]")
        assert last == "RuntimeError: of the inside"


def test_last_lines_that_operators_get_have_no_token_of_the_servers_files(api: Server, log: io.StringIO) -> None:
    service_log.set_up("text", log)
    for token in TOKENS:
        logging.getLogger("a.b").warning("with %s at the end", token.secret)
    lines = api.client.get("/trainyard/v1/debug", headers=ADMIN).json()["log"]
    shown = [line.partition("a.b: ")[2] for line in lines if "a.b: with" in line]
    assert shown == ["with *** at the end"] * len(TOKENS)
    assert [token.name for token in TOKENS if any(token.secret in line for line in lines)] == []
