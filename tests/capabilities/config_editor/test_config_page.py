"""The config of a job in the browser: the environment of its replicas, and commands to copy."""

import json
from typing import Any

from playwright.sync_api import expect

from browser.browser_support import DashboardServer, Open

IMAGE: dict[str, Any] = {
    "scaleTier": "CUSTOM",
    "masterType": "local-1",
    "workerType": "local-1",
    "workerCount": "2",
    "args": ["--lr", "0.1", "--note", "it's <b>"],
    "jobDir": "gs://bucket/runs/base",
    "scheduling": {"maxRunningTime": "7200s"},
}


def test_tf_config_is_there_as_soon_as_the_job_is_placed(dashboard: DashboardServer, open_page: Open) -> None:
    agent = dashboard.agent(cpus=3)
    dashboard.submit("base", **IMAGE)
    page = open_page("/projects/p/jobs/base/config")
    run = dashboard.placed(agent, "base")
    agent.sync()
    agent.start(run)
    shown = page.get_by_role("region", name="TF_CONFIG")
    expect(shown).to_be_visible()
    assert json.loads(shown.inner_text())["task"] == {"type": "chief", "index": 0}
    page.locator("select[name=task]").select_option("worker-replica-1")
    page.wait_for_url("**task=worker-replica-1")
    assert json.loads(shown.inner_text())["task"] == {"type": "worker", "index": 1}
    expect(page.locator(".environment")).to_contain_text("RANK")
    explained = dashboard.api.get("/trainyard/v1/projects/p/jobs/base/explain", task="worker-replica-1")
    by_hand = page.get_by_role("button", name="Copy the line that starts worker-replica-1 by hand")
    expect(by_hand).to_have_attribute("data-copy", explained["reproduce"])


def test_command_is_copied(dashboard: DashboardServer, open_page: Open) -> None:
    dashboard.submit("base")
    page = open_page("/projects/p/jobs/base/config")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the command: Describe it").click()
    expect(page.locator("#notes")).to_contain_text("Copied.")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied == "trainyard jobs describe base --project p"
