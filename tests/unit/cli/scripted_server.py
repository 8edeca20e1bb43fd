"""A server on a real port that answers what the test says, in order, and keeps what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trainyard_protocol.errors import TrainyardError, to_body

Answer = tuple[int, str, bytes] | tuple[int, str, bytes, dict[str, str]]
"""Status, content type, body, more headers."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class ScriptedServer:
    """Answers are used up in order; the last one is given for ever. A callable sees the request."""

    url: str = ""
    answers: list[Answer | Callable[[Request], Answer]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def next_answer(self, request: Request) -> Answer:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer if isinstance(answer, tuple) else answer(request)


def ok(data: Any) -> Answer:
    return 200, "application/json", json.dumps(data).encode()


def refused(error: TrainyardError) -> Answer:
    return error.http_status, "application/json", json.dumps(to_body(error)).encode()


def events(*sent: tuple[str, Any]) -> Answer:
    """A stream of (event, model) that is cut after the last one."""
    blocks = [": ping\n\n"]
    for name, model in sent:
        cursor = f"id: {model.cursor}\n" if name == "log" else ""
        blocks.append(f"event: {name}\n{cursor}data: {model.model_dump_json()}\n\n")
    return 200, "text/event-stream", "".join(blocks).encode()


CUT = (0, "", b"")
"""The connection is closed without an answer."""


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    script = ScriptedServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self._body()
            request = Request(self.command, self.path, dict(self.headers), body)
            answer = script.next_answer(request)
            status, kind, content = answer[:3]
            self.close_connection = True
            if status:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Connection", "close")
                for name, value in (answer[3] if len(answer) == 4 else {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = do_PATCH = answer  # noqa: N815

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        script.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield script
        finally:
            server.shutdown()
            thread.join()
