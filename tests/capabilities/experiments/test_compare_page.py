"""The comparison of jobs: differences, and curves with a tick for each job."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from browser.browser_support import DashboardServer, Open, axe
from trainyard_protocol.wire.logs import LogChunk, LogLine

RATES = ("0.3", "0.1", "0.03", "0.01")
T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
WORKER = "worker-replica-0"


def measured(rate: float, step: int) -> dict[str, float]:
    loss = abs(rate - 0.1) + 30 / step
    return {"loss": round(loss, 4), "held_out_accuracy": round(0.95 - loss / 2, 4)}


@pytest.fixture
def tuned(dashboard: DashboardServer) -> DashboardServer:
    """Twelve jobs with a learning rate and an optimizer; 0.1 is the best rate."""
    agent = dashboard.agent(cpus=2)
    for number in range(12):
        rate, optimizer = RATES[number % 4], ("adam", "sgd")[number // 4 % 2]
        run = dashboard.started(agent, f"cnn_{number:02}", args=["--lr", rate, "--optimizer", optimizer, "--epochs=5"])
        lines = tuple(
            LogLine(
                time=(T0 + timedelta(seconds=step / 20)).isoformat(),
                stream="stdout",
                text=json.dumps({"step": step} | measured(float(rate) - number / 10_000, step)),
            )
            for step in range(100, 2001, 100)
        )
        agent.ship("master-replica-0", LogChunk.of(0, lines), run)
        agent.exit(code=0, run=run)
    return dashboard


def address(*numbers: int, **more: str) -> str:
    jobs = "&".join(f"job=p/cnn_{number:02}" for number in numbers)
    return "&".join([f"/compare?{jobs}", *(f"{name}={value}" for name, value in more.items())])


CHART = """(metric) => {
  const { picture, plot } = document.querySelector(`.chart-card[data-metric="${metric}"] .chart`) ?? {};
  const { lines } = picture ?? {};
  return %s;
}"""
"""A value of what is drawn."""


def chart(page: Page, what: str, metric: str = "loss") -> Any:
    return page.evaluate(CHART % what, metric)


def eventually(page: Page, what: str, metric: str = "loss") -> None:
    page.wait_for_function(CHART % f"picture && plot && ({what})", arg=metric)


def test_jobs_are_columns_and_the_best_is_marked(tuned: DashboardServer, open_page: Open) -> None:
    page = open_page(address(0, 1, 2))
    table = page.get_by_role("table", name="Differences")
    expect(table.locator("thead .name")).to_have_text(["cnn_00", "cnn_01", "cnn_02"])
    expect(table.locator("tbody th[scope=row]").first).to_have_text("lr")
    row = table.get_by_role("row", name="held_out_accuracy, last")
    expect(row.locator(".is-best")).to_contain_text("best")
    expect(page.locator(".lead")).to_contain_text("The best is cnn_01: held_out_accuracy 0.94")
    expect(table).not_to_contain_text("epochs")
    page.get_by_text("equal field").click()
    expect(page.locator("#compared").get_by_text("epochs", exact=True)).to_be_visible()
    page.get_by_role("link", name="Without cnn_02").click()
    expect(table.locator("thead .name")).to_have_text(["cnn_00", "cnn_01"])
    page.locator(".lead").get_by_role("link", name="cnn_01").click()
    page.wait_for_url("**/projects/p/jobs/cnn_01")


def test_curves_share_a_crosshair_and_ticks_hide_jobs(tuned: DashboardServer, open_page: Open) -> None:
    page = open_page(address(0, 1, 2))
    eventually(page, "lines.length === 3")
    eventually(page, "lines.length === 3", "accuracy")
    assert len(set(chart(page, "lines.map((line) => line.colour)"))) == 3
    figure = page.locator('.chart-card[data-metric="loss"] .chart .u-over')
    figure.hover(position={"x": 120, "y": 60})
    page.wait_for_function(CHART % "Math.abs(plot.cursor.left - 120) < 2", arg="accuracy")
    expect(page.locator('.chart-card[data-metric="accuracy"] .chart-hover p')).to_have_count(3)

    page.get_by_role("checkbox", name="cnn_02").uncheck()
    eventually(page, "lines.length === 2")
    page.get_by_label("X axis").select_option("time")
    page.get_by_label("logarithmic").check()
    page.get_by_label("Smoothing").fill("0.6")
    eventually(page, "picture.x.title === 'seconds since the start' && picture.x.log && lines.length === 4")
    assert page.url.endswith("&smooth=0.6&x=time&logx=1&off=p/cnn_02")
    page.reload()
    eventually(page, "picture.x.log && lines.length === 4")
    expect(page.get_by_role("checkbox", name="cnn_02")).not_to_be_checked()
    page.get_by_role("button", name="All", exact=True).press("Enter")
    eventually(page, "lines.length === 6")


def test_many_jobs_are_rows_with_a_colour_each(tuned: DashboardServer, open_page: Open) -> None:
    page = open_page(address(*range(12)))
    table = page.get_by_role("table", name="Differences")
    expect(table.locator("tbody tr")).to_have_count(12)
    expect(page.locator(".lead")).to_contain_text("with lr=0.1, optimizer=")
    eventually(page, "lines.length === 12")
    assert len(set(chart(page, "lines.map((line) => line.colour)"))) == 12
    expect(page.locator("#parallel")).to_be_hidden()
    assert axe(page) == []
    page.emulate_media(color_scheme="dark")


def test_replicas_are_a_band_and_a_running_job_goes_on(dashboard: DashboardServer, open_page: Open) -> None:
    agent = dashboard.agent(cpus=8, memory_gb=64)
    runs = [dashboard.started(agent, f"cnn_{n:02}", workerCount="1", workerType="local-1") for n in range(2)]
    for run in runs:
        agent.log(*(json.dumps({"step": step, "loss": 1.0}) for step in (1, 3)), run=run)
        agent.log(*(json.dumps({"step": step, "loss": 3.0}) for step in (1, 2, 3)), task=WORKER, run=run)
    page = open_page(address(0, 1))
    eventually(page, "lines.filter((line) => line.fills).length === 2 && lines.length === 6")
    assert chart(page, "lines.slice(0, 3).map((line) => line.y)") == [[1, 1, 1], [3, 3, 3], [2, 2, 2]]
    expect(page.locator("#bands")).to_be_visible()
    agent.log(json.dumps({"step": 4, "loss": 0.5}), run=runs[1])
    eventually(page, "lines[5].x.length === 3 || lines[5].x.length === 4")
