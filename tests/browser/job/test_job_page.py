"""The overview of one job."""

import re

from playwright.sync_api import Page, expect

from browser.browser_support import DashboardServer, Open, Viewport, axe
from integration.api.api_support import ADMIN

GANG = {"workerCount": "2", "workerType": "local-1"}
CURVE, VERDICT, TIME = "#live-curve", "#live-verdict", "#live-timeline"


def assert_in_first_view(page: Page, *selectors: str) -> None:
    """Each is whole within the window, without scrolling, and below the one before it."""
    above = 0.0
    for selector in ("#job", *selectors):
        box = page.locator(selector).bounding_box()
        assert box is not None, selector
        assert box["height"] > 0, selector
        assert above <= box["y"], f"{selector} is not below the part before it"
        above = box["y"] + box["height"]
        assert above <= Viewport.LIGHT.height, f"{selector} ends at {above}"


def assert_side_column(page: Page, *headings: str) -> None:
    """These headings are at the right, in the first view."""
    for heading in headings:
        box = page.locator(".side").get_by_role("heading", name=heading).bounding_box()
        assert box is not None, heading
        assert box["x"] > 900, heading
        assert box["y"] < Viewport.LIGHT.height, heading


def test_failed_job_shows_its_curve_then_why(dashboard: DashboardServer, open_page: Open) -> None:
    agent = dashboard.agent(cpus=4)
    given = {"labels": {"team": "vision"}, "jobDir": "gs://models/cnn_large"}
    run = dashboard.started(agent, "cnn_large", **given, **GANG)
    line = '{{"event": "progress", "step": {}, "steps": 5000, "loss": {}}}'
    agent.log(*(line.format(step, loss) for step, loss in ((600, 0.4), (1200, 0.31))), run=run)
    trace = ("Traceback (most recent call last):", '  File "task.py", line 84, in main', "    train()")
    agent.log(*trace, "ValueError: no data", task="worker-replica-0", run=run)
    agent.exit("worker-replica-0", code=3, run=run, message="It exited with 3.")
    agent.stopped("worker-replica-1", run=run)
    agent.stopped("master-replica-0", run=run)
    page = open_page("/projects/p/jobs/cnn_large")
    expect(page.get_by_role("heading", name="Why it failed")).to_be_visible()
    verdict = page.locator(VERDICT)
    expect(verdict.locator(".lead")).to_have_text("ValueError: no data")
    expect(verdict.locator(".facts > div").first).to_have_text("Exit code3")
    expect(page.get_by_role("link", name="This line in the log")).to_have_attribute("href", re.compile(r"/logs#L\d+$"))
    expect(page.locator(CURVE).get_by_role("img", name="loss over the steps, between 0.31 and 0.4")).to_be_visible()
    assert_in_first_view(page, CURVE, VERDICT, TIME)
    assert_side_column(page, "Progress", "Job", "At a terminal")
    folded = verdict.get_by_text("Traceback (most recent call last):")
    expect(folded).to_be_hidden()
    verdict.get_by_text("1 line before").press("Enter")
    expect(folded).to_be_visible()
    events = page.locator(".events")
    expect(events.get_by_text("worker-replica-0 running → exited")).to_be_hidden()
    expect(events).to_contain_text("Run 1 failed")
    page.get_by_role("checkbox", name=re.compile(r"All \d+ events")).press("Space")
    expect(events.get_by_text("worker-replica-0 running → exited")).to_be_visible()
    assert axe(page) == []


def test_job_is_followed_from_the_queue_until_its_result(dashboard: DashboardServer, open_page: Open) -> None:
    name = "resnet50_imagenet_lr0_1_baseline"
    dashboard.submit(name, args=["--epochs", "90", "--note", "two words"])
    page = open_page(f"/projects/p/jobs/{name}")
    expect(page.locator(VERDICT).get_by_role("heading", name="Number 1 in the queue")).to_be_visible()
    expect(page.locator(CURVE)).to_be_empty()
    assert_in_first_view(page, VERDICT, TIME)
    agent = dashboard.agent(cpus=2)
    run = dashboard.placed(agent, name)
    agent.start(run)
    curve = page.locator(CURVE)
    expect(page.locator("#live-head")).to_contain_text("Running")
    expect(curve.get_by_role("heading", name="No curve yet")).to_be_visible()
    expect(curve.get_by_role("button", name="Copy the line")).to_be_visible()
    assert_in_first_view(page, CURVE, TIME)
    line = '{{"event": "progress", "step": {}, "steps": 5000, "loss": {}}}'
    agent.log(*(line.format(n * 100, 3 / n) for n in range(1, 13)), run=run)
    expect(curve.locator(".big")).to_have_text("0.25")
    expect(curve.locator(".stats")).to_contain_text("1,200 of 5,000")
    expect(curve.locator(".stats")).to_contain_text(re.compile(r"about .+ left"))
    height = curve.bounding_box()
    agent.log(line.format(1300, 0.375), run=run)
    expect(curve.locator(".big")).to_have_text("0.375")
    expect(curve.locator(".stats > div").nth(1)).to_have_text("Best0.25at step 1,200")
    assert curve.bounding_box() == height, "nothing moves when a point is added"
    assert_in_first_view(page, CURVE, TIME)
    assert_side_column(page, "Progress", "Job", "At a terminal")
    chart = curve.get_by_role("group", name="Curve of loss")
    chart.press("Home")
    expect(chart.get_by_role("status")).to_have_text("3 · step 100")
    page.locator(".terminal summary").press("Enter")
    expect(page.locator(".terminal").get_by_text("Train twice as long")).to_be_visible()
    cut = "all => all.filter((it) => it.scrollWidth > it.clientWidth).map((it) => it.textContent)"
    assert page.locator(".command pre").evaluate_all(cut) == []
    agent.exit(run=run)
    expect(page.locator("#live-head")).to_contain_text("Succeeded")
    expect(curve.get_by_role("img", name="loss over the steps, between 0.25 and 3")).to_be_visible()
    dashboard.started(agent, "better", args=["--epochs", "180"])
    better = dashboard.placed(agent, "better")
    agent.log(line.format(100, 0.125), run=better)
    agent.exit(run=better)
    expect(page.get_by_role("heading", name="Number 2 of 2 jobs with this program")).to_be_visible()
    expect(page.locator(VERDICT)).to_contain_text("Best loss 0.25, 0.125 above better (0.125).")
    assert_in_first_view(page, CURVE, VERDICT, TIME)


def test_job_that_is_deleted_leaves_a_message_on_its_open_page(dashboard: DashboardServer, open_page: Open) -> None:
    dashboard.submit("digits")
    dashboard.api.cancel("digits")
    page = open_page("/projects/p/jobs/digits")
    answer = dashboard.api.client.request("DELETE", "/trainyard/v1/projects/p/jobs/digits", headers=ADMIN)
    assert answer.status_code == 200
    expect(page.locator("#banner")).to_contain_text("This job was deleted.")
    page.get_by_role("button", name="All jobs").click()
    expect(page.get_by_text("digits")).to_have_count(0)
    errors: list[str] = page.errors  # type: ignore[attr-defined]
    assert all("404 (Not Found)" in error for error in errors)
    errors.clear()
