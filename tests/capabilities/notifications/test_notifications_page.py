"""Channels and notifications in the browser."""

from typing import Any

import pytest
from playwright.sync_api import expect

from beds.services.receivers import http_receiver
from browser.browser_support import DashboardServer, Open, axe, in_each_viewport, is_within_window
from integration.api.api_support import ADMIN
from trainyard_server.capabilities.notifications.options import NotificationOptions
from trainyard_server.capabilities.notifications.sender import Sender


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {"options": (NotificationOptions(local_webhooks=True),)}


def test_channels_are_tested_and_their_notifications_shown(dashboard: DashboardServer, open_page: Open) -> None:
    api = dashboard.api
    with http_receiver() as receiver:
        for name, url, events in (("team", receiver.url, ["end"]), ("away", "http://127.0.0.1:1/", [])):
            body = {"address": url, "events": events}
            path = f"/trainyard/v1/projects/p/channels/{name}"
            assert api.client.request("PUT", path, json=body, headers=ADMIN).status_code == 200
        page = open_page("/")
        page.get_by_role("link", name="Notifications").click()
        expect(page.get_by_role("row").filter(has_text="team")).to_contain_text("end of all jobs")
        page.get_by_role("button", name="Test team of p").click()
        expect(page.locator("#notes")).to_contain_text("team accepted the test.")
        page.get_by_role("button", name="Test away of p").click()
        expect(page.locator("#notes")).to_contain_text("away did not accept the test: ")
        assert len(receiver.accepted) == 1
        dashboard.submit("digits")
        api.cancel("digits")
        api.client.run(api.use_cases.of(Sender).step)
        expect(page.locator("#live-sent")).to_contain_text("delivered")
        expect(page.get_by_role("row").filter(has_text="team").filter(has_text="working")).to_have_count(1)
        expect(page.get_by_role("link", name="digits")).to_be_visible()
        for viewport in in_each_viewport(page):
            assert axe(page, viewport) == []
            assert is_within_window(page)
        looking = open_page("/notifications", role="viewer")
        expect(looking.get_by_role("button", name="Test team of p")).to_have_count(0)
