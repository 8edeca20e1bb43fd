"""The list of jobs."""

import pytest
from playwright.sync_api import Locator, Page, expect

from browser.browser_support import DashboardServer, Open, Viewport, axe
from trainyard_server.dashboard.pages import jobs as jobs_page
from trainyard_server.services.views import job_search


def row(page: Page, job: str) -> Locator:
    return page.locator("[data-row]").filter(has=page.get_by_role("link", name=job, exact=True))


@pytest.fixture
def busy(dashboard: DashboardServer) -> DashboardServer:
    """Jobs in every state, and one of them stalled."""
    agent = dashboard.agent(cpus=2)
    good = dashboard.started(agent, "digits_baseline", labels={"team": "vision", "stage": "final"})
    agent.exit(run=good)
    bad = dashboard.started(agent, "cnn_large", labels={"team": "vision"}, project="research")
    agent.log("Traceback (most recent call last):", "ValueError: no data", run=bad)
    agent.exit(code=1, run=bad)
    running = dashboard.started(agent, "transformer_lr3", labels={"team": "language"})
    dashboard.submit("transformer_lr4", labels={"team": "language"})
    for step in range(100, 1300, 100):
        loss = 2.3 / (1 + step / 150) + 0.05 * (step % 300 == 0)
        agent.log(f'{{"event": "progress", "step": {step}, "steps": 5000, "epoch": 2, "loss": {loss}}}', run=running)
    dashboard.submit("waits", workerCount="1", workerType="local-1")
    return dashboard


def test_list_is_updated(dashboard: DashboardServer, open_page: Open) -> None:
    agent = dashboard.agent(cpus=2)
    page = open_page("/")
    expect(page.get_by_role("heading", name="No jobs yet")).to_be_visible()
    dashboard.submit("digits")
    digits = row(page, "digits")
    expect(digits).to_be_visible()
    run = dashboard.placed(agent, "digits")
    agent.start(run)
    expect(digits).to_contain_text("Running")
    expect(page.get_by_role("link", name="Running 1")).to_be_visible()
    agent.exit(run=run)
    expect(digits).to_contain_text("Succeeded")


def test_focus_stays_when_a_row_above_disappears(dashboard: DashboardServer, open_page: Open) -> None:
    for job in ("first", "second"):
        dashboard.submit(job)
    page = open_page("/?state=QUEUED")
    link = row(page, "first").get_by_role("link", name="first")
    link.focus()
    dashboard.api.cancel("second")
    expect(row(page, "second")).to_have_count(0)
    expect(link).to_be_focused()


def test_filters_live_in_the_address_and_columns_sort(busy: DashboardServer, open_page: Open) -> None:
    page = open_page("/")
    page.get_by_role("link", name="Failed 1").click()
    page.wait_for_url("**/?state=FAILED")
    expect(page.locator("[data-row]")).to_have_count(1)
    expect(row(page, "cnn_large")).to_be_visible()
    page.goto("/")
    page.get_by_role("searchbox").fill("TRANSFORMER")
    page.get_by_role("searchbox").press("Enter")
    page.wait_for_url("**/?q=TRANSFORMER")
    expect(page.locator("[data-row]")).to_have_count(2)
    page.locator("summary").get_by_text("More").click()
    page.get_by_role("textbox", name="Label").fill("team=vision")
    page.get_by_role("textbox", name="Label").press("Enter")
    expect(page.get_by_role("heading", name="No job matches")).to_be_visible()
    page.get_by_role("link", name="Clear filters").click()
    expect(page.locator("[data-row]")).to_have_count(5)
    page.locator("#filters [name=project]").select_option("research")
    page.wait_for_url("**/?project=research")
    expect(page.locator("[data-row]")).to_have_count(1)
    page.reload()
    expect(page.locator("[data-row]")).to_have_count(1)
    expect(page.locator("#filters [name=project]")).to_have_value("research")

    page.goto("/")
    page.get_by_role("link", name="Needs attention 1").click()
    expect(page.locator("[data-row]")).to_have_count(1)
    expect(row(page, "cnn_large")).to_contain_text("ValueError: no data")

    page.goto("/")
    names = page.locator("[data-row] .name")
    page.locator("th.col-job").get_by_role("link").click()
    expect(names).to_have_text(["cnn_large", "digits_baseline", "transformer_lr3", "transformer_lr4", "waits"])
    page.locator("th.col-job").get_by_role("link").click()
    expect(names).to_have_text(["waits", "transformer_lr4", "transformer_lr3", "digits_baseline", "cnn_large"])
    expect(page.locator("th.col-job")).to_have_attribute("aria-sort", "descending")


def test_pages_follow_each_other(dashboard: DashboardServer, open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (job_search, jobs_page):
        monkeypatch.setattr(module, "PAGE_SIZE", 5)
    for number in range(12):
        dashboard.submit(f"job_{number:03}")
    page = open_page("/")
    expect(page.locator("[data-row]")).to_have_count(5)
    expect(page.get_by_role("navigation", name="Pages")).to_contain_text("1 to 5 of 12")
    page.get_by_role("link", name="Older").click()
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("navigation", name="Pages")).to_contain_text("11 to 12 of 12")
    expect(page.locator("[data-row]")).to_have_count(2)
    expect(page.get_by_role("link", name="Older")).to_have_count(0)


def test_many_jobs_are_cancelled_at_once(busy: DashboardServer, open_page: Open) -> None:
    page = open_page("/")
    page.get_by_label("Select waits").check()
    page.get_by_label("Select transformer_lr4").check()
    expect(page.locator("#bulk-count")).to_have_text("2 jobs selected")
    page.get_by_role("button", name="Cancel them").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("waits")
    dialog.get_by_role("button", name="Keep them").click()
    assert busy.api.job("waits")["state"] == "QUEUED"
    page.get_by_role("button", name="Cancel them").click()
    dialog.get_by_role("button", name="Cancel them").click()
    expect(row(page, "waits")).to_contain_text("Cancelled")
    expect(row(page, "transformer_lr4")).to_contain_text("Cancelling")
    expect(page.get_by_text("2 jobs are being cancelled.")).to_be_visible()
    expect(page.locator("#bulk")).to_be_hidden()


def test_keyboard_is_enough_also_to_compare_ticked_jobs(busy: DashboardServer, open_page: Open) -> None:
    page = open_page("/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("j")
    expect(page.get_by_role("searchbox")).to_have_value("j")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="waits")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_label("Select transformer_lr4")).to_be_checked()
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="transformer_lr3")).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url("**/projects/p/jobs/transformer_lr4")

    page.goto("/")
    page.keyboard.press("c")
    expect(page.get_by_text("Select the jobs to compare")).to_be_visible()
    page.get_by_label("Select transformer_lr4").click()
    page.keyboard.press("c")
    expect(page.get_by_text("select another one to compare it with")).to_be_visible()
    row(page, "digits_baseline").locator("td.pick").click(modifiers=["Shift"], position={"x": 2, "y": 2})
    expect(page.locator("#bulk")).to_contain_text("4 jobs selected Compare c")
    page.get_by_label("Select cnn_large").click()
    expect(page.locator("#bulk-count")).to_have_text("3 jobs selected")
    page.keyboard.press("c")
    page.wait_for_url("**/compare?job=p%2Ftransformer_lr4&job=p%2Ftransformer_lr3&job=p%2Fdigits_baseline")


def test_what_was_typed_is_shown_as_text(dashboard: DashboardServer, open_page: Open) -> None:
    """No API accepts such names; pages escape them all the same."""
    bad = "<script>alert(1)<b>"
    dashboard.submit("job")
    with dashboard.api.use_cases.backend.store.write() as writer:
        job = writer.job("p", "job")
        assert job is not None
        writer._change_job(job, {}, job_id=f"x{bad}", labels={bad: bad}, owner=bad, waiting=bad)
    page = open_page("/")
    expect(page.get_by_role("link", name=f"x{bad}")).to_be_visible()
    expect(page.locator("[data-row]")).to_contain_text(f"{bad}={bad}")
    page.get_by_role("link", name=f"x{bad}").click()
    expect(page.get_by_role("heading", name=f"x{bad}")).to_be_visible()
    assert page.locator("script:not([src])").count() == 0


def test_both_ways_to_dark_have_the_same_colours_and_the_choice_is_stored(
    dashboard: DashboardServer, open_page: Open
) -> None:
    colours = """() => Object.fromEntries([...getComputedStyle(document.documentElement)]
        .filter((name) => name.startsWith("--"))
        .map((name) => [name, getComputedStyle(document.documentElement).getPropertyValue(name)]))"""
    chosen = open_page("/")
    chosen.evaluate("document.documentElement.dataset.theme = 'dark'")
    systems = open_page("/", viewport=Viewport.DARK)
    assert chosen.evaluate(colours) == systems.evaluate(colours)

    chosen.reload()
    background = "getComputedStyle(document.body).backgroundColor"
    light = chosen.evaluate(background)
    chosen.get_by_role("button", name="Colour theme").click()
    chosen.get_by_role("button", name="Colour theme").click()
    dark = chosen.evaluate(background)
    assert dark != light
    chosen.reload()
    assert chosen.evaluate(background) == dark


def test_page_beyond_the_limit_of_streams_says_so(
    busy: DashboardServer, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = busy.api.use_cases.limits.streams
    monkeypatch.setattr(streams, "_most", 1)
    with streams.slot("admin"):
        page = open_page("/")
        expect(page.locator("#banner")).to_contain_text("You have too many live pages open")
    errors = page.errors  # type: ignore[attr-defined]
    assert all("429" in error for error in errors)
    errors.clear()


def test_banner_is_shown_while_the_server_is_away(busy: DashboardServer, open_page: Open) -> None:
    page = open_page("/")
    expect(row(page, "waits")).to_be_visible()
    busy.link.cut()
    expect(page.locator("#banner")).to_contain_text("The server does not answer")
    busy.submit("meanwhile")
    busy.link.restore()
    expect(row(page, "meanwhile")).to_be_visible()
    expect(page.locator("#banner")).to_be_hidden()
    page.errors.clear()  # type: ignore[attr-defined]


def test_missing_page_is_a_page(dashboard: DashboardServer, open_page: Open) -> None:
    page = open_page("/projects/p/jobs/nothing")
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
    expect(page.get_by_text("The job projects/p/jobs/nothing was not found.")).to_be_visible()
    assert axe(page) == []
    page.goto("/nowhere")
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
    page.errors.clear()  # type: ignore[attr-defined]


def test_viewer_has_nothing_to_press(busy: DashboardServer, open_page: Open) -> None:
    page = open_page("/", role="viewer")
    expect(row(page, "waits")).to_be_visible()
    page.get_by_label("Select all jobs of this page").check()
    expect(page.locator("#bulk")).to_be_visible()
    expect(page.locator("#bulk").get_by_role("button")).to_have_text(["Select none"])
    expect(page.get_by_role("button", name="Save view")).to_have_count(0)
    expect(page.get_by_role("link", name="New job")).to_have_count(0)
    page.goto("/projects/p/jobs/waits")
    expect(page.get_by_role("heading", name="waits")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    expect(page.get_by_role("link", name="Clone")).to_have_count(0)
    refused = page.evaluate(
        """async () => (await fetch("/v1/projects/p/jobs/waits:cancel", { method: "POST", body: "{}", headers: {
            "X-CSRF-Token": document.querySelector('meta[name="csrf-token"]').content } })).status"""
    )
    assert (refused, busy.api.job("waits")["state"]) == (403, "QUEUED")
    page.errors.clear()  # type: ignore[attr-defined]
