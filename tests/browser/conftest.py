"""Pages in a real browser: Debian's Chromium, driven by Playwright, before a server with a scripted agent.

Every page fails its test that logs an error, breaks the Content-Security-Policy, or asks another host for anything.
Screenshots are kept below $SCREENSHOTS, or test-artefacts/ where that is not set.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright

from browser.browser_support import Look, Yard
from browser.link import linked
from browser.quiet_network import QuietNetwork, quiet_network
from integration.api.api_support import Server, server, serving

expect.set_options(timeout=15_000)  # a machine that does much besides is slow, not wrong
_WITHOUT = (
    # The address line of each window is a page of its own, which takes as long to load as the page that is tested.
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    "WebUIOmniboxFullPopup",
    # Only the last --disable-features counts: what Playwright does without as well.
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
SHOTS = Path(os.environ.get("SCREENSHOTS", "test-artefacts/screenshots"))


class RealClock:
    """The time as the browser has it, too."""

    def __call__(self) -> datetime:
        return datetime.now(UTC)

    def stopwatch(self) -> float:
        return time.monotonic()


@pytest.fixture(scope="session")
def network() -> Iterator[QuietNetwork]:
    """Where the browser is, and what it can reach."""
    with quiet_network() as network:
        yield network


@pytest.fixture(scope="module")
def chromium(network: QuietNetwork, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Not for longer than a module: as long as Playwright is there it has an event loop running in this thread, and
    no test that is a coroutine could have one."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail("There is no Chromium here: scripts/test-tools.sh installs it.")
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", f"--disable-features={','.join(_WITHOUT)}"]
        program = network.program(path, tmp_path_factory.mktemp("chromium"))
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def yard_settings() -> dict[str, Any]:
    """What is special about a test's server; a module may have its own."""
    return {}


@pytest.fixture
def yard(tmp_path: Path, yard_settings: dict[str, Any], network: QuietNetwork) -> Iterator[Yard]:
    """A server that ticks by itself, behind a socket, and nothing in it."""
    with ExitStack() as stack:
        running = stack.enter_context(ExitStack())
        api, url = running.enter_context(_serving(tmp_path / "server", yard_settings))
        link = stack.enter_context(linked(network.listening(), url))

        def stop() -> None:
            link.cut()
            running.close()

        @contextmanager
        def again() -> Iterator[Server]:
            with _serving(tmp_path / "server", yard_settings) as (successor, there):
                link.lead_to(there)
                link.mend()
                yield successor

        yield Yard(api, link, stop, again)


@contextmanager
def _serving(data_dir: Path, special: dict[str, Any]) -> Iterator[tuple[Server, str]]:
    changes: dict[str, Any] = {"run_loops": True, "tick_s": 0.1, "silent_after_s": 3600.0, **special}
    with server(data_dir, RealClock(), **changes) as api, serving(api.app) as url:  # type: ignore[arg-type]
        yield api, url


@pytest.fixture
def open_page(chromium: Browser, yard: Yard) -> Iterator[Callable[..., Page]]:
    """Opens a page as somebody: `open_page("/", role="viewer", look=Look.DARK)`. What goes wrong in it fails the test
    at its end, unless the test has taken it out of `page.troubles`."""
    with ExitStack() as stack:
        opened: list[tuple[Page, list[str]]] = []

        def open_one(path: str = "/", *, role: str = "admin", look: Look = Look.LIGHT) -> Page:
            context = stack.enter_context(_context(chromium, yard, role, look))
            page = context.new_page()
            troubles: list[str] = []
            page.troubles = troubles  # type: ignore[attr-defined]
            _watch(page, yard.url, troubles)
            opened.append((page, troubles))
            page.goto(path)
            return page

        yield open_one
        wrong = [trouble for _, troubles in opened for trouble in troubles]
    assert wrong == []


@pytest.fixture
def shot(request: pytest.FixtureRequest) -> Callable[..., Path]:
    """Keeps a picture of a page: `shot(page, "jobs-dark")`."""

    def keep(page: Page, name: str, *, full_page: bool = True) -> Path:
        path = SHOTS / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=path, full_page=full_page)
        return path

    return keep


@contextmanager
def _context(chromium: Browser, yard: Yard, role: str, look: Look) -> Iterator[BrowserContext]:
    context = chromium.new_context(
        base_url=yard.url,
        viewport={"width": look.width, "height": look.height},
        color_scheme=look.scheme,
        locale="en-GB",
        timezone_id="Europe/Berlin",
    )
    context.set_default_timeout(15_000)
    try:
        yard.sign_in(context, role)
        yield context
    finally:
        context.close()


def _watch(page: Page, url: str, troubles: list[str]) -> None:
    here = urlparse(url).netloc

    def asked(request: Request) -> None:
        there = urlparse(request.url)
        if there.scheme in ("http", "https") and there.netloc != here:
            troubles.append(f"asks another host: {request.url}")

    page.on("request", asked)
    page.on("pageerror", lambda error: troubles.append(f"script: {error}"))
    page.on(
        "console",
        lambda said: troubles.append(f"console: {said.text}") if said.type in ("error", "warning") else None,
    )
