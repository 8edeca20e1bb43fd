"""The overview of one job."""

import re

from playwright.sync_api import expect

from browser.browser_support import DashboardServer, Open, axe
from integration.api.api_support import ADMIN

GANG = {"workerCount": "2", "workerType": "local-1"}


def test_failed_job_shows_why_on_top(dashboard: DashboardServer, open_page: Open) -> None:
    agent = dashboard.agent(cpus=4)
    given = {"labels": {"team": "vision"}, "jobDir": "gs://models/cnn_large"}
    run = dashboard.started(agent, "cnn_large", **given, **GANG)
    agent.log('{"event": "progress", "step": 1200, "steps": 5000, "loss": 0.31}', run=run)
    agent.log("Traceback (most recent call last):", "ValueError: no data", task="worker-replica-0", run=run)
    agent.exit("worker-replica-0", code=1, run=run, message="It exited with 1.")
    agent.stopped("worker-replica-1", run=run)
    agent.stopped("master-replica-0", run=run)
    page = open_page("/projects/p/jobs/cnn_large")
    expect(page.get_by_role("heading", name="Why it failed")).to_be_visible()
    expect(page.locator("#live-verdict .lead")).to_have_text("ValueError: no data")
    expect(page.get_by_role("link", name="This line in the log")).to_have_attribute("href", re.compile(r"/logs#L\d+$"))
    assert axe(page) == []


def test_running_job_is_followed_until_its_result(dashboard: DashboardServer, open_page: Open) -> None:
    name = "resnet50_imagenet_lr0_1_baseline"
    agent = dashboard.agent(cpus=2)
    dashboard.submit(name, args=["--epochs", "90", "--note", "two words"])
    page = open_page(f"/projects/p/jobs/{name}")
    run = dashboard.placed(agent, name)
    agent.start(run)
    expect(page.locator("#live-head")).to_contain_text("Running")
    line = '{{"event": "progress", "step": {}, "steps": 5000, "loss": {}}}'
    agent.log(*(line.format(n * 100, 3 / n) for n in range(1, 13)), run=run)
    expect(page.locator("#live-progress")).to_contain_text("1,200 of 5,000 steps")
    cut = "all => all.filter((it) => it.scrollWidth > it.clientWidth).map((it) => it.textContent)"
    assert page.locator(".command pre").evaluate_all(cut) == []
    agent.exit(run=run)
    expect(page.get_by_role("heading", name="Result")).to_be_visible()
    expect(page.get_by_role("img", name="loss over the steps, between 0.25 and 3")).to_be_visible()
    assert axe(page) == []


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
