"""The page of the HTTP API: Swagger UI on `/openapi.json`, whose calls have the session of the page."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from browser.browser_support import DashboardServer, Open, axe


@pytest.fixture
def server_settings(tmp_path: Path) -> dict[str, Any]:
    """A file of quotas, which a call without parameters reads again."""
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("default: {runningJobs: 3}\n")
    return {"quotas": quotas}


def _answer(page: Page, operation: str) -> str:
    """The answer to a call of an operation without parameters, made from the page."""
    block = page.locator(f"#operations-Trainyard-{operation}")
    block.locator(".opblock-summary-control").click()
    block.get_by_role("button", name="Try it out").click()
    block.get_by_role("button", name="Execute").click()
    answer = block.locator(".live-responses-table .response")
    expect(answer).to_be_visible()
    return answer.inner_text()


def test_calls_of_the_page_have_its_session_and_its_csrf_token(dashboard: DashboardServer, open_page: Open) -> None:
    page = open_page("/docs")
    page.locator("#operations-tag-Trainyard").get_by_role("button").click()
    me, quotas = _answer(page, "me_trainyard_v1_me_get"), _answer(page, "reload_quotas_trainyard_v1_quotas_reload_post")
    assert (me.split()[0], '"name": "admin"' in me, quotas.split()[0]) == ("200", True, "200")


def test_page_is_open_to_all(dashboard: DashboardServer, open_page: Open) -> None:
    page = open_page("/docs", role="")
    expect(page.get_by_role("link", name="AI Platform Training", exact=True)).to_be_visible()
    assert axe(page) == []
