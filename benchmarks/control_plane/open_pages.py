"""Open pages: what ten browsers with ten filters cost the server while jobs run that no filter finds."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import httpx

from benchmarks.rows import Row, Samples, interleaved
from benchmarks.service import Service, cpu_s, run_code, running

_JOBS = 5  # of a round
_ENDED = 200  # jobs that the server has
_TRAINING = """
import json, time
for step in range(40):
    print(json.dumps(dict(event="progress", step=step, loss=1 / (step + 1))), flush=True)
    time.sleep(0.05)
"""
"""A program of two seconds that reports twenty steps a second."""

FILTERS = (
    "q=another",
    "q=nightly&sort=name",
    "project=p0",
    "project=p1&owner=alice",
    "owner=alice",
    "owner=bob&sort=-ended",
    "label=stage=final",
    "label=pinned",
    "filter=params.lr<0",
    "filter=metrics.accuracy.best>2&sort=-metrics.accuracy.best",
)
"""Queries of pages that show no new job."""


class _Browser:
    """An open page, which reads what the server sends."""

    def __init__(self, client: httpx.Client, query: str) -> None:
        self._stack = client.stream("GET", f"/live/?{query}", timeout=None)
        self._answer = self._stack.__enter__().raise_for_status()
        self._first = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        if not self._first.wait(30):
            raise RuntimeError(f"The page with {query} receives nothing.")

    def _read(self) -> None:
        try:
            for line in self._answer.iter_lines():
                if line == "event: parts":
                    self._first.set()
        except (httpx.TransportError, httpx.StreamError):  # closed
            return

    def close(self) -> None:
        self._answer.extensions["network_stream"].get_extra_info("socket").shutdown(2)
        self._reader.join()
        self._stack.__exit__(None, None, None)


@contextmanager
def _browsers(service: Service, queries: Sequence[str]) -> Iterator[None]:
    server = service.client.server
    headers = {"Authorization": f"Bearer {server.token}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False) as client:
        opened = [_Browser(client, query) for query in queries]
        try:
            yield
        finally:
            for browser in opened:
                browser.close()


def _cpu_ms(service: Service, queries: Sequence[str]) -> float:
    """CPU of the server for a job, with these pages open."""
    with _browsers(service, queries):
        before = cpu_s(service.server)
        for _ in range(_JOBS):
            service.output(run_code(_TRAINING), 1)
        return (cpu_s(service.server) - before) * 1000 / _JOBS


def _filters(quick: bool) -> Samples:
    with running(jobs=_ENDED) as service:
        return interleaved(
            partial(_cpu_ms, service, FILTERS), partial(_cpu_ms, service, ()), 2 if quick else 5, "ms of CPU"
        )


ROWS = (
    Row(
        "open-pages",
        "ten open pages with ten filters that find no new job: CPU of the server for a job of 40 steps",
        "the same without pages",
        1.3,
        _filters,
        "pages ask once in a while whether they are complete, whatever has changed",
    ),
)
