"""The client of the API server: how its connections end."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeDown
from trainyard_agent.engines.kubernetes.api.connection import KubeConnection


@contextmanager
def silent_server() -> Iterator[str]:
    """Begins each answer, and says nothing more until the test is over."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "BOOKMARK", "object": {}}\n')
            over.wait(60)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            over.set()
            server.shutdown()
            thread.join()


def test_close_ends_what_other_threads_read_before_it_closes_the_connections() -> None:
    seen, failures = threading.Event(), []

    def read(client: KubeClient) -> None:
        try:
            for _ in client.watch("pods", "", "1"):
                seen.set()
        except KubeDown as down:
            failures.append(down)

    with silent_server() as url:
        client = KubeClient(KubeConnection(url, ssl.create_default_context(), None, "default"))
        reader = threading.Thread(target=read, args=(client,))
        reader.start()
        assert seen.wait(30)
        client.close()
        reader.join(30)
        assert not reader.is_alive()
        with pytest.raises(KubeDown, match="is closed"):
            client.version()
