"""Compression of answers: which of them, and how their parts arrive."""

import gzip
import zlib
from collections.abc import Sequence

import pytest
from starlette.types import Message, Receive, Scope, Send

from trainyard_server.api.middleware.compression import Compression

PAGE = b"<p>a job</p>" * 200


class Call:
    """An answer of an application behind the middleware, as the messages that its client receives."""

    def __init__(
        self,
        body: Sequence[bytes] = (PAGE,),
        *,
        path: str = "/",
        method: str = "GET",
        media_type: str = "text/html; charset=utf-8",
        status: int = 200,
        answer: dict[str, str] | None = None,
        **request: str,
    ) -> None:
        self._body = body
        self._start = {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (name.encode(), value.encode())
                for name, value in {"content-type": media_type, **(answer or {})}.items()
            ],
        }
        headers = {"accept_encoding": "gzip, deflate", **request}
        self._scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        }
        self.messages: list[Message] = []

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send(self._start)
        for number, part in enumerate(self._body, 1):
            await send({"type": "http.response.body", "body": part, "more_body": number < len(self._body)})

    async def answer(self) -> dict[str, str]:
        """The headers of the answer."""

        async def receive() -> Message:
            raise AssertionError("nothing is read")

        async def send(message: Message) -> None:
            self.messages.append(message)

        await Compression(self)(self._scope, receive, send)
        return {name.decode().lower(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages[1:]]


async def test_page_is_compressed_for_a_browser_that_accepts_it() -> None:
    call = Call(answer={"content-length": str(len(PAGE)), "vary": "Cookie"})
    headers = await call.answer()
    assert headers["content-encoding"] == "gzip"
    assert headers["vary"] == "Cookie, Accept-Encoding"
    assert "content-length" not in headers
    assert gzip.decompress(b"".join(call.bodies)) == PAGE


@pytest.mark.parametrize(
    ("call", "varies"),
    [
        (Call(accept_encoding="identity"), True),
        (Call(accept_encoding="gzip;q=0, *"), True),
        (Call(sec_fetch_site="cross-site"), True),
        (Call(sec_fetch_site="same-site"), True),
        (Call([b"<p>small</p>"]), True),
        (Call(method="HEAD", body=[b""]), True),
        (Call(status=304, body=[b""]), False),
        (Call(status=206), False),
        (Call(answer={"content-encoding": "br"}), False),
        (Call(media_type="image/png"), False),
        (Call(media_type="application/octet-stream"), False),
        (Call(media_type="text/event-stream", path="/trainyard/v1/projects/p/jobs/j/logs"), False),
        (Call(media_type="application/json", path="/agent/v1/sync"), False),
        (Call(path="/download/storage/v1/b/bucket/o/page.html"), False),
    ],
)
async def test_answer_stays_as_it_is(call: Call, varies: bool) -> None:
    headers = await call.answer()
    assert headers.get("content-encoding") in (None, "br")
    assert ("accept-encoding" in headers.get("vary", "").lower()) is varies
    assert call.bodies == list(call._body)


async def test_each_event_of_an_open_page_can_be_read_as_soon_as_it_is_sent() -> None:
    events = [b"event: hello\n\n", b": ping\n\n", b"event: parts\n\n"]
    call = Call([*events, b""], media_type="text/event-stream", path="/live/", accept_encoding="br, *;q=0.1")
    assert (await call.answer())["content-encoding"] == "gzip"
    reader = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert [reader.decompress(part) for part in call.bodies] == [*events, b""]
    assert reader.eof
