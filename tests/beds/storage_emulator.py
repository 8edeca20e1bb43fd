"""An emulator of Cloud Storage in the process of the tests, with its objects in memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from gcp_storage_emulator.server import create_server


@contextmanager
def emulator(bucket: str | None = None) -> Iterator[str]:
    """Its URL. With `bucket` there is one from the beginning."""
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=bucket)
    server.start()
    try:
        yield f"http://127.0.0.1:{server._api._httpd.server_address[1]}"
    finally:
        server.stop()
