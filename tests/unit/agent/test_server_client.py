import json
import ssl
from collections.abc import Callable

import httpx
import pytest

from trainyard_agent.server_client import ServerClient
from trainyard_protocol.errors import Internal, NotFound, TrainyardError, Unauthenticated, Unavailable, to_body
from trainyard_protocol.wire.logs import LogChunk


def answering(respond: Callable[[httpx.Request], httpx.Response]) -> ServerClient:
    return ServerClient("http://stub", "t", "k", transport=httpx.MockTransport(respond))


def refuse(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("Connection refused")


@pytest.mark.parametrize(
    ("respond", "expected"),
    [
        (refuse, Unavailable),
        (lambda _: httpx.Response(200, text="<html>"), Internal),
        (lambda _: httpx.Response(502, text="<html>"), Unavailable),
        (lambda _: httpx.Response(401, json=to_body(Unauthenticated("no"))), Unauthenticated),
        (lambda _: httpx.Response(404, json=to_body(NotFound("no"))), NotFound),
    ],
)
async def test_every_failure_is_one_of_the_error_tree(
    respond: Callable[[httpx.Request], httpx.Response], expected: type[TrainyardError]
) -> None:
    async with answering(respond) as client:
        with pytest.raises(expected):
            await client.send_log("r", "t", LogChunk(start=0))


async def test_address_that_cannot_be_one_is_an_error_of_the_tree() -> None:
    async with ServerClient("http://[::1", "t", "k") as client:
        with pytest.raises(Unavailable, match="Invalid port"):
            await client.about()


async def test_server_that_does_not_answer_is_said_with_the_reason() -> None:
    """Also one that has no text, and one of a network that broke off within TLS, which is no lack of TLS."""
    plain = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    plain.reason = "WRONG_VERSION_NUMBER"
    alert = ssl.SSLError(1, "[SSL: TLSV1_ALERT_PROTOCOL_VERSION] alert")
    alert.reason = "TLSV1_ALERT_PROTOCOL_VERSION"
    cut = ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
    expected: dict[Exception, str] = {
        httpx.ReadTimeout(""): "The server at http://stub does not answer (ReadTimeout).",
        httpx.ConnectError("Connection refused"): "The server at http://stub does not answer (Connection refused).",
        caused(httpx.ConnectError("EOF"), cut): "The server at http://stub does not answer (EOF).",
        caused(httpx.ConnectError(""), plain): (
            "There is no TLS at http://stub (WRONG_VERSION_NUMBER): does the server there speak http:// only?"
        ),
        caused(httpx.ConnectError(""), alert): (
            "TLS with the server at http://stub fails (TLSV1_ALERT_PROTOCOL_VERSION)."
        ),
    }
    wrong = {}
    for error, message in expected.items():

        def fail(_: httpx.Request, error: Exception = error) -> httpx.Response:
            raise error

        async with answering(fail) as client:
            with pytest.raises(Unavailable) as failed:
                await client.send_log("r", "t", LogChunk(start=0))
        if failed.value.message != message:
            wrong[repr(error)] = failed.value.message
    assert not wrong


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


async def test_token_is_sent_and_proxies_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    seen: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["Authorization"])
        return httpx.Response(200, text=json.dumps({"next": 0, "complete": False}))

    async with answering(respond) as client:
        await client.send_log("r", "t", LogChunk(start=0))
    assert seen == ["Bearer t"]
