"""The page of one's own tokens in the browser."""

from playwright.sync_api import Dialog, expect

from browser.browser_support import DashboardServer, Open
from integration.api.api_support import ADMIN


def test_what_a_token_made_is_offered_for_revocation(dashboard: DashboardServer, open_page: Open) -> None:
    client = dashboard.api.client

    def made(who: dict[str, str]) -> tuple[str, dict[str, str]]:
        answer = client.post("/trainyard/v1/tokens", json={}, headers=who).json()
        return answer["token"]["token_id"], {"Authorization": f"Bearer {answer['secret']}"}

    give = {"role": "admin"}
    client.request("PUT", "/trainyard/v1/projects/p/members/admin", json=give, headers=ADMIN)
    first, who = made(ADMIN)
    second, further = made(who)
    page = open_page("/tokens")
    expect(page.get_by_role("row").filter(has_text=f"with {first}")).to_contain_text(second)
    asked: list[str] = []

    def accept(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept()

    page.on("dialog", accept)
    page.get_by_role("button", name=f"Revoke {first}").click()
    expect(page.get_by_role("button", name=f"Revoke {second}")).to_have_count(0)
    assert [second in text for text in asked] == [False, True]
    assert client.get("/trainyard/v1/me", headers=further).status_code == 401


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
    page.on("dialog", lambda dialog: dialog.accept())
    row.get_by_role("button").click()
    expect(row).to_have_count(0)
    assert dashboard.api.client.get("/trainyard/v1/me", headers=mine).status_code == 401
    page.reload()
    expect(secret).to_have_text("")
