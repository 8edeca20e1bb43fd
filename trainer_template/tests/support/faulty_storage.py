"""A proxy between a trainer and the storage emulator that injects upload failures."""

import http.client
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

NAME = re.compile(rb'"name": ?"([^"]+)"')
HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class FaultyStorage:
    """At `endpoint`. An upload for whose name `fault` returns a status is cut half-way and gets that status."""

    def __init__(self, upstream: str) -> None:
        self.fault: Callable[[str], int | None] = lambda _name: None
        self.cut: list[str] = []  # the names of the objects whose uploads were
        storage = self
        address = urlsplit(upstream).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_request(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length // 2)
                match = NAME.search(body[:4096]) if self.path.startswith("/upload/") else None
                name = match[1].decode() if match else ""
                status = storage.fault(name) if name else None
                if status is not None:
                    storage.cut.append(name)
                    self._respond(status, {}, b'{"error": {"message": "injected fault"}}')
                    self.close_connection = True
                    return
                body += self.rfile.read(length - len(body))
                upstream = http.client.HTTPConnection(address, timeout=60)
                headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
                upstream.request(self.command, self.path, body, headers)
                response = upstream.getresponse()
                forwarded = {k: v for k, v in response.getheaders() if k.lower() not in HOP_BY_HOP}
                self._respond(response.status, forwarded, response.read())
                upstream.close()

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = handle_request  # noqa: N815

            def _respond(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
