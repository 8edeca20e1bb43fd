"""The audit in the browser."""

import pytest
from playwright.sync_api import expect

from browser.browser_support import DashboardServer, Open
from integration.api.api_support import BOB
from trainyard_server.services.people import audit


def test_rows_are_shown_and_filtered(
    dashboard: DashboardServer, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "AUDIT_PAGE_SIZE", 4)
    for number in range(4):
        dashboard.submit(f"digits_{number}")
    client = dashboard.api.client
    client.post("/v1/projects/p/jobs/digits_0:cancel", headers=BOB)
    client.get("/v1/projects/<b>q/jobs", headers={"Authorization": "Bearer wrong", "User-Agent": "<i>scanner</i>"})
    page = open_page("/")
    page.get_by_role("link", name="Audit").click()
    rows = page.locator("[data-row]")
    expect(rows).to_have_count(4)
    expect(rows.first).to_contain_text("<b>q")
    expect(rows.first).to_contain_text("<i>scanner</i>")
    expect(rows.nth(1)).to_contain_text("jobs.cancel")
    expect(rows.nth(1)).to_contain_text("refused")
    page.get_by_role("link", name="Older").click()
    expect(rows).to_have_count(2)
    page.get_by_label("Actor").fill("bob")
    page.get_by_role("button", name="Filter").click()
    expect(rows).to_have_count(1)
    page.goto("/audit?actor=nobody")
    expect(page.get_by_text("No row matches")).to_be_visible()
