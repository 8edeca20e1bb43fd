"""Sign-in and sign-out in the browser."""

from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from browser.browser_support import DashboardServer, Open, axe, in_each_viewport
from integration.api.api_support import ALICE
from trainyard_cli.commands.service.dashboard import write_page
from trainyard_cli.local.browser_address import DASHBOARD_HOST


def test_page_shows_where_the_token_is(dashboard: DashboardServer, open_page: Open) -> None:
    page = open_page("/", role="")
    expect(page).to_have_url(f"{dashboard.url}/sign-in")
    expect(page.get_by_text("trainyard dashboard")).to_be_visible()
    expect(page.get_by_label("Token")).to_be_focused()
    for viewport in in_each_viewport(page):
        assert axe(page, viewport) == []


def test_wrong_token_is_refused_and_the_right_one_signs_in_and_out(dashboard: DashboardServer, open_page: Open) -> None:
    page = open_page("/?state=FAILED", role="")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text(
        "That is not a token of this server. Check that all of it was copied."
    )
    assert axe(page) == []
    page.get_by_label("Token").fill("alices-secret")
    page.get_by_label("Token").press("Enter")
    expect(page).to_have_url(f"{dashboard.url}/?state=FAILED")
    expect(page.locator(".me")).to_have_text("alice")
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{dashboard.url}/sign-in")
    page.goto("/")
    expect(page).to_have_url(f"{dashboard.url}/sign-in")
    page.errors[:] = [error for error in page.errors if "status of 401" not in error]  # type: ignore[attr-defined]


def test_link_signs_in_once_leaves_no_code_in_the_address_and_no_cookie_under_other_names(
    dashboard: DashboardServer, open_page: Open, tmp_path: Path
) -> None:
    code = dashboard.api.client.post("/trainyard/v1/sign-in-codes", headers=ALICE).json()["code"]
    address = dashboard.url.replace("127.0.0.1", DASHBOARD_HOST)
    page = open_page("/", role="")
    page.goto(write_page(f"{address}/sign-in#{code}", tmp_path).as_uri())
    expect(page).to_have_url(f"{address}/")
    expect(page.locator(".me")).to_have_text("alice")
    assert len(page.context.cookies(address)) == 1
    assert page.context.cookies([dashboard.url, dashboard.url.replace("127.0.0.1", "localhost")]) == []
    page.go_back()
    assert code not in page.url
    page.close()
    page.errors[:] = [error for error in page.errors if address not in error]  # type: ignore[attr-defined]
    again = open_page(f"/sign-in#{code}", role="")
    expect(again.get_by_role("alert")).to_contain_text("That link was used already")
    again.errors[:] = [error for error in again.errors if "status of 401" not in error]  # type: ignore[attr-defined]


def test_link_asks_before_it_replaces_another_account_and_its_tabs_show_it(
    dashboard: DashboardServer, open_page: Open
) -> None:
    other = open_page("/", role="admin")
    expect(other.locator(".me")).to_have_text("admin")
    code = dashboard.api.client.post("/trainyard/v1/sign-in-codes", headers=ALICE).json()["code"]
    page = other.context.new_page()
    page.goto(f"/sign-in#{code}")
    expect(page.get_by_text("You are signed in as admin. Sign in as alice instead?")).to_be_visible()
    expect(page.get_by_role("link", name="Stay signed in as admin")).to_be_visible()
    assert axe(page) == []
    page.get_by_role("button", name="Sign in as alice").click()
    expect(page.locator(".me")).to_have_text("alice")
    expect(other.get_by_text("This browser has signed in again")).to_be_visible()
    other.get_by_role("button", name="Reload").click()
    expect(other.locator(".me")).to_have_text("alice")


@pytest.mark.parametrize("path", ["/", "/projects/p/jobs/job/logs"])
def test_tab_goes_to_the_sign_in_page_when_another_signs_out(
    dashboard: DashboardServer, open_page: Open, path: str
) -> None:
    dashboard.submit("job")
    page = open_page(path)
    refused: list[str] = []
    page.on("response", lambda answer: refused.append(answer.url) if answer.status == 401 else None)
    expect(page.get_by_text("job").first).to_be_visible()
    other = page.context.new_page()
    other.goto("/")
    other.get_by_role("button", name="Sign out").click()
    expect(other).to_have_url(f"{dashboard.url}/sign-in")
    expect(page).to_have_url(f"{dashboard.url}/sign-in?next={quote(path, safe='')}")
    assert 0 < len(refused) <= 2, "one question for each stream, and none again"
    page.errors[:] = [error for error in page.errors if "status of 401" not in error]  # type: ignore[attr-defined]


def test_link_that_mlflow_has_printed_leads_to_the_job_also_after_signing_in(
    dashboard: DashboardServer, open_page: Open
) -> None:
    dashboard.submit("job")
    experiment = dashboard.api.client.post("/api/2.0/mlflow/experiments/search", json={}, headers=ALICE).json()
    number = experiment["experiments"][0]["experiment_id"]
    page = open_page(f"/#/experiments/{number}/runs/job-1", role="")
    page.get_by_label("Token").fill("alices-secret")
    page.get_by_label("Token").press("Enter")
    expect(page).to_have_url(f"{dashboard.url}/projects/p/jobs/job")
    page.goto(f"/#/experiments/{number}/models/m-1-1")
    expect(page).to_have_url(f"{dashboard.url}/projects/p/jobs/job")
    page.goto(f"/#/experiments/{number}")
    expect(page).to_have_url(f"{dashboard.url}/?project=p")
