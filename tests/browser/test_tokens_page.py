"""The page of one's own tokens in the browser."""

from playwright.sync_api import expect

from browser.browser_support import DashboardServer, Open, axe


def test_token_is_made_shown_once_and_revoked(dashboard: DashboardServer, open_page: Open) -> None:
    page = open_page("/tokens")
    page.get_by_label("What it is for").fill("<b>laptop</b>")
    page.get_by_role("button", name="Make a token").click()
    secret = page.locator("#secret")
    expect(secret).to_contain_text("trainyard_")
    mine = {"Authorization": f"Bearer {secret.inner_text()}"}
    assert dashboard.api.client.get("/trainyard/v1/me", headers=mine).status_code == 200
    row = page.get_by_role("row").filter(has_text="<b>laptop</b>").filter(has_text="valid")
    expect(row).to_have_count(1)
    assert axe(page) == []
    page.on("dialog", lambda dialog: dialog.accept())
    row.get_by_role("button").click()
    expect(row).to_have_count(0)
    assert dashboard.api.client.get("/trainyard/v1/me", headers=mine).status_code == 401
    page.reload()
    expect(secret).to_have_text("")
