"""The comparison of 50 jobs with ten curves of 10,000 points each, in Chromium: the time of the page's main thread."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, sync_playwright

from benchmarks.filled import QUEUED, TOKEN, FilledServer, fill, started
from benchmarks.rows import LeftOut, Row, Samples, interleaved
from trainyard_protocol.wire.logs import LogLine
from trainyard_server.storage.logs.store import LogStore, Stream

_JOBS, _FEW = 50, 2
_CURVES, _POINTS, _AT_ONCE = 10, 10_000, 1000
_DRAWN = """(count) => {
  const shown = [...document.querySelectorAll(".chart-card .chart")].filter(({ plot, picture }) => plot && picture);
  return shown.length && shown.every(({ picture }) => picture.lines.length === count);
}"""


def _compared(quick: bool) -> Samples:
    program = shutil.which("chromium")
    if program is None:
        raise LeftOut("there is no Chromium on this machine")
    with (
        tempfile.TemporaryDirectory() as directory,
        started(_filled(Path(directory))) as server,
        sync_playwright() as p,
    ):
        browser = p.chromium.launch(executable_path=program, args=["--no-sandbox"])
        many, few = (_page(browser, server, count) for count in (_JOBS, _FEW))
        samples = interleaved(many, few, 2 if quick else 6, "s of main thread")
        browser.close()
    return samples


def _page(browser: Browser, server: FilledServer, count: int) -> Callable[[], float]:
    """Open the comparison of so many jobs in a window of 1280x860, at its curves; the seconds of its main thread."""
    names = "&".join(f"job=p{number % 5}/job_{number:07}" for number in range(count))

    def open_page() -> float:
        with _context(browser, server) as context:
            page = context.new_page()
            tools = context.new_cdp_session(page)
            tools.send("Performance.enable")
            page.goto(f"/compare?{names}")
            page.locator(".chart-card").first.scroll_into_view_if_needed()
            page.wait_for_function(_DRAWN, arg=count, polling=200)  # not at each frame
            page.wait_for_load_state("networkidle")
            metrics = {item["name"]: item["value"] for item in tools.send("Performance.getMetrics")["metrics"]}
            return float(metrics["TaskDuration"])

    return open_page


@contextmanager
def _context(browser: Browser, server: FilledServer) -> Iterator[BrowserContext]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    context = browser.new_context(
        base_url=str(server.client.base_url), extra_http_headers=headers, viewport={"width": 1280, "height": 860}
    )
    context.set_default_timeout(60_000)
    try:
        yield context
    finally:
        context.close()


def _filled(directory: Path) -> Path:
    """A directory of a server with jobs that have printed their curves."""
    fill(directory / "data", _JOBS + QUEUED)
    logs = LogStore(directory / "data" / "logs", durable=False)
    began = datetime.now(UTC) - timedelta(hours=1)
    for number in range(_JOBS):
        for first in range(0, _POINTS, _AT_ONCE):
            lines = [_line(began, number, step) for step in range(first, first + _AT_ONCE)]
            logs.append(f"p{number % 5}", f"job_{number:07}", Stream(1, "master-replica-0"), first, lines)
    return directory


def _line(began: datetime, job: int, step: int) -> LogLine:
    values = {f"m{curve}": round(1 / (1 + step / 500 + curve) + job / 100, 5) for curve in range(_CURVES)}
    time = (began + timedelta(milliseconds=100 * step)).isoformat()
    return LogLine(time, "stdout", json.dumps({"step": step, **values}))


ROWS = (
    Row(
        "compared",
        "the page that compares 50 jobs, with ten curves of 10,000 points each",
        "the same page with 2 of them",
        0.5,
        _compared,
        "the legend, the differences, and the charts in sight; the server sends 60,000 points in all",
        is_figure=True,
        in_quick=False,
    ),
)
