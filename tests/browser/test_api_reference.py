"""The page of the HTTP API: open without a token, a call's details, and the messages that it names."""

from playwright.sync_api import expect

from browser.browser_support import DashboardServer, Open, axe


def test_calls_lead_to_their_messages(dashboard: DashboardServer, open_page: Open) -> None:
    page = open_page("/docs", role="")
    call = page.locator("details.call").filter(has_text="Submit a job, which")
    call.locator("summary").click()
    expect(call).to_contain_text("validateOnly")
    call.get_by_role("link", name="Job", exact=True).first.click()
    message = page.locator("#GoogleCloudMlV1__Job")
    expect(message).to_be_visible()
    expect(message).to_contain_text("trainingInput")
    assert axe(page) == []
