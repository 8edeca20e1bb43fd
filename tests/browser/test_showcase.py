"""Every page in every viewport, with a busy server: screenshots, and what keeps people out of them.

Screenshots are kept below $SCREENSHOTS, or test-artefacts/ where that is not set.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from browser.browser_support import DashboardServer, Open, Viewport, axe
from browser.link import linked
from browser.quiet_network import QuietNetwork
from browser.showcase import FAILED, RUNNING, WITH_FILES, Show, ShowClock
from integration.api.api_support import server, serving
from trainyard_server.domain.lifecycle.stalls import StallAction

SHOTS = Path(os.environ.get("SCREENSHOTS", "test-artefacts/screenshots"))
RESEARCH = "/projects/research/jobs"
PAGES = {
    "jobs": "/",
    "trouble": "/?trouble=1",
    "job": f"{RESEARCH}/{RUNNING}",
    "job-succeeded": f"{RESEARCH}/{WITH_FILES}",
    "job-failed": f"{RESEARCH}/{FAILED}",
    "job-stalled": f"{RESEARCH}/translator_de_en",
    "logs": f"{RESEARCH}/{FAILED}/logs",
    "metrics": f"{RESEARCH}/{RUNNING}/metrics",
    "compare": f"/compare?job=research/{RUNNING}&job=research/resnet50_lr0_03&job=research/resnet50_lr0_01",
    "config": f"{RESEARCH}/{RUNNING}/config",
    "files": f"{RESEARCH}/{WITH_FILES}/files",
    "file-table": f"{RESEARCH}/{WITH_FILES}/files/view?path=metrics.csv",
    "file-markdown": f"{RESEARCH}/{WITH_FILES}/files/view?path=README.md",
    "file-model": f"{RESEARCH}/{WITH_FILES}/files/view?path=model/model.json",
    "cluster": "/cluster",
    "audit": "/audit",
    "tokens": "/tokens",
    "api": "/docs",
    "new": f"/new?from=research/{RUNNING}",
}

DRAWN = {
    "api": ".opblock-tag",
    "metrics": "canvas",
    "compare": ".chart-card",
    "job": "figure.chart svg",
    "jobs": "[data-row]",
    "logs": ".ln",
}
"""Selector of what scripts draw, for each page that is complete with it."""


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory, network: QuietNetwork) -> Iterator[DashboardServer]:
    directory = tmp_path_factory.mktemp("showcase")
    clock = ShowClock()
    job_dirs = directory / "jobs"
    changes: dict[str, Any] = {"run_loops": False, "silent_after_s": 36_000.0, "stall_action": StallAction.REPORT}
    changes |= {"job_dir_roots": (str(directory),), "one_user": True}
    with (
        server(directory / "server", clock, **changes) as api,  # type: ignore[arg-type]
        serving(api.app) as url,
        linked(network.listening(), url) as link,
    ):
        shown = DashboardServer(api, link)
        Show(shown, clock, job_dirs).play()
        yield shown


@pytest.mark.parametrize(
    "viewport",
    [
        *(Viewport.LIGHT, Viewport.NARROW_DARK),
        *(
            pytest.param(viewport, marks=pytest.mark.long)
            for viewport in (Viewport.DARK, Viewport.WIDE, Viewport.WIDE_DARK, Viewport.NARROW)
        ),
    ],
)
def test_every_page_can_be_shown_and_used_by_everyone(
    dashboard: DashboardServer, open_page: Open, viewport: Viewport
) -> None:
    page = open_page("/", viewport=viewport)
    violations = {}
    for name, path in PAGES.items():
        page.goto(path)
        page.wait_for_load_state("load")
        expect(page.locator(DRAWN.get(name, "main")).first).to_be_visible()
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        picture = f"{name}-{viewport.name.lower()}.png"
        page.screenshot(path=SHOTS / picture, full_page=True)
        page.screenshot(path=SHOTS / "window" / picture)
        if found := axe(page, viewport):
            violations[name] = found
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            violations.setdefault(name, []).append("too wide")
    assert violations == {}
