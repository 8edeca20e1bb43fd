"""Pages in a real browser: Debian's Chromium, driven by Playwright, against a server with a scripted agent.

Every page fails its test that logs an error, breaks the Content-Security-Policy, or asks another host for anything."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright

from beds.installed.missing import need_program
from browser.browser_support import DashboardServer, Viewport
from browser.link import linked
from browser.quiet_network import QuietNetwork, quiet_network
from integration.api.api_support import Server, server, serving

expect.set_options(timeout=30_000)  # a machine that does much besides is slow, not wrong
_WITHOUT = (
    # The address bar of each window is a page of its own, which takes as long to load as the page that is tested.
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    "WebUIOmniboxFullPopup",
    # Only the last --disable-features counts: these are the ones that Playwright disables.
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable",
    "LensOverlay",
    "MediaRouter",
    "PaintHolding",
    "OptimizationHints",
    "NetworkTimeServiceQuerying",
    "AimEnabled",
    "PreconnectToSearch",
)


class RealClock:
    """The real time, as in the browser."""

    def __call__(self) -> datetime:
        return datetime.now(UTC)

    def stopwatch(self) -> float:
        return time.monotonic()


@pytest.fixture(scope="session")
def network() -> Iterator[QuietNetwork]:
    """The network of the browser."""
    with quiet_network() as network:
        yield network


@pytest.fixture(scope="module")
def chromium(network: QuietNetwork, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium of one module: while Playwright runs, its event loop runs in this thread, and asynchronous tests could
    not have theirs."""
    path = need_program("chromium", "chromium-browser", "google-chrome")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", f"--disable-features={','.join(_WITHOUT)}"]
        program = network.program(path, tmp_path_factory.mktemp("chromium"))
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def server_settings() -> dict[str, Any]:
    """Settings of the test's server; modules may override it."""
    return {}


@pytest.fixture
def dashboard(tmp_path: Path, server_settings: dict[str, Any], network: QuietNetwork) -> Iterator[DashboardServer]:
    """An empty server that ticks by itself, behind a socket."""
    with ExitStack() as stack:
        running = stack.enter_context(ExitStack())
        api, url = running.enter_context(_serving(tmp_path / "server", server_settings))
        link = stack.enter_context(linked(network.listening(), url))

        def stop() -> None:
            link.cut()
            running.close()

        @contextmanager
        def again() -> Iterator[Server]:
            with _serving(tmp_path / "server", server_settings) as (successor, url):
                link.lead_to(url)
                link.restore()
                yield successor

        yield DashboardServer(api, link, stop, again)


@contextmanager
def _serving(data_dir: Path, special: dict[str, Any]) -> Iterator[tuple[Server, str]]:
    changes: dict[str, Any] = {"run_loops": True, "tick_s": 0.1, "silent_after_s": 3600.0, **special}
    with server(data_dir, RealClock(), **changes) as api, serving(api.app) as url:  # type: ignore[arg-type]
        yield api, url


@pytest.fixture
def open_page(chromium: Browser, dashboard: DashboardServer) -> Iterator[Callable[..., Page]]:
    """Opens a page: `open_page("/", role="viewer", viewport=Viewport.DARK)`. Errors in it fail the test at its
    end, unless the test has removed them from `page.errors`."""
    with ExitStack() as stack:
        opened: list[tuple[Page, list[str]]] = []

        def open_one(path: str = "/", *, role: str = "admin", viewport: Viewport = Viewport.LIGHT) -> Page:
            context = stack.enter_context(_context(chromium, dashboard, role, viewport))
            page = context.new_page()
            errors: list[str] = []
            page.errors = errors  # type: ignore[attr-defined]
            _watch(page, dashboard.url, errors)
            opened.append((page, errors))
            page.goto(path)
            return page

        yield open_one
        remaining = [error for _, errors in opened for error in errors]
    assert remaining == []


@contextmanager
def _context(chromium: Browser, dashboard: DashboardServer, role: str, viewport: Viewport) -> Iterator[BrowserContext]:
    context = chromium.new_context(
        base_url=dashboard.url,
        viewport={"width": viewport.width, "height": viewport.height},
        color_scheme=viewport.scheme,
        locale="en-GB",
        timezone_id="Europe/Berlin",
    )
    context.set_default_timeout(30_000)
    try:
        dashboard.sign_in(context, role)
        yield context
    finally:
        context.close()


def _watch(page: Page, url: str, errors: list[str]) -> None:
    own = urlparse(url).netloc

    def on_request(request: Request) -> None:
        address = urlparse(request.url)
        if address.scheme in ("http", "https") and address.netloc != own:
            errors.append(f"asks another host: {request.url}")

    page.on("request", on_request)
    page.on("pageerror", lambda error: errors.append(f"script: {error}"))
    page.on(
        "console",
        lambda message: errors.append(f"console: {message.text}") if message.type in ("error", "warning") else None,
    )
