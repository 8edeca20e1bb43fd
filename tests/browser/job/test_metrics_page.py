"""The curves of a job."""

import json
import math
import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from browser.browser_support import DashboardServer, Open, axe
from integration.api.api_support import ScriptedAgent
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.logs import LogChunk, LogLine

PAGE = "/projects/p/jobs/cnn_small/metrics"
MASTER, WORKER = "master-replica-0", "worker-replica-0"
T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)


def progress(step: int, **values: object) -> str:
    return json.dumps({"event": "progress", "step": step, "steps": 2000} | values)


def training(seed: int, steps: int = 1000, rate: float = 300.0) -> list[str]:
    """A training: noisy, with an evaluation now and then."""
    chance = random.Random(seed)
    lines = []
    for step in range(10, steps + 1, 10):
        loss = 2.3 * math.exp(-step / rate) + 0.15 + chance.uniform(-0.05, 0.05)
        spike = 1.5 if step == 620 else 0.0
        lines.append(
            progress(
                step,
                epoch=1 + (step - 1) // 400,
                epochs=5,
                loss=round(loss + spike, 4),
                accuracy=round(1 - loss / 3, 4),
                examples_per_second=chance.randint(1180, 1240),
            )
        )
        if step % 100 == 0:
            values = {"held_out_loss": round(loss + 0.12, 4), "held_out_accuracy": round(0.93 - loss / 3, 4)}
            lines.append(json.dumps({"event": "evaluation", "step": step} | values))
    return lines


class Lab:
    """A job that trains, and one to compare it with."""

    def __init__(self, dashboard: DashboardServer) -> None:
        self.dashboard = dashboard
        self.agent: ScriptedAgent = dashboard.agent(cpus=8, memory_gb=64)
        self._lines: dict[tuple[str, str], int] = {}
        self.run = dashboard.started(self.agent, "cnn_small", workerCount="1", workerType="local-1")
        self.other = dashboard.started(self.agent, "cnn_wide", project="research")

    def says(self, *texts: str, task: str = MASTER, run: Any = None, every_s: float = 7.5) -> None:
        """Log lines of a program that has written one each `every_s` for a while."""
        run = run or self.run
        start = self._lines.get((run.run_id, task), 0)
        lines = tuple(
            LogLine(time=(T0 + timedelta(seconds=number * every_s)).isoformat(), stream="stdout", text=text)
            for number, text in enumerate(texts, start)
        )
        self.agent.ship(task, LogChunk.of(start, lines), run)
        self._lines[run.run_id, task] = start + len(lines)

    def trains(self) -> None:
        self.says(*training(1))
        self.says(*training(2, rate=180.0), run=self.other, every_s=11.0)


@pytest.fixture
def lab(dashboard: DashboardServer) -> Lab:
    return Lab(dashboard)


def card(page: Page, metric: str) -> Any:
    return page.locator(f'.chart-card:not(.painted)[data-metric="{metric}"]')


def drawn(page: Page, metric: str = "loss") -> Any:
    shown = card(page, metric)
    shown.scroll_into_view_if_needed()
    expect(shown.locator("canvas")).to_be_visible()
    return shown


CHART = """(metric) => {
  const { picture, plot } = document.querySelector(`.chart-card:not(.painted)[data-metric="${metric}"] .chart`) ?? {};
  const { lines } = picture ?? {};
  return %s;
}"""
"""A value of what is drawn."""


def chart(page: Page, what: str, metric: str = "loss") -> Any:
    return page.evaluate(CHART % what, metric)


def eventually(page: Page, what: str, metric: str = "loss") -> None:
    page.wait_for_function(CHART % f"picture && ({what})", arg=metric)


def range_of(page: Page) -> tuple[float, float]:
    low, high = chart(page, "[plot.scales.x.min, plot.scales.x.max]")
    return low, high


def test_curves_are_shown(lab: Lab, open_page: Open) -> None:
    lab.trains()
    page = open_page(PAGE)
    drawn(page)
    expect(page.locator("#where")).to_have_text("Step 1,000 of 2,000 · epoch 3 of 5")
    expect(page.locator(".chart-card h2")).to_have_text(["loss", "accuracy", "examples_per_second"])
    rows = card(page, "loss").locator("tbody tr")
    expect(rows.nth(0)).to_contain_text("loss")
    expect(rows.nth(1)).to_contain_text("held_out_loss")
    expect(rows.nth(1)).to_contain_text("1,000")
    drawn(page, "examples_per_second")


def test_first_curves_are_the_servers(lab: Lab, open_page: Open) -> None:
    lab.trains()
    page = open_page("/")
    page.route("**/vendor/*.js", lambda route: route.abort())
    page.route("**/metrics?*", lambda route: None)  # no answer
    page.goto(PAGE)
    expect(page.locator(".painted h2")).to_have_text(["loss", "accuracy", "examples_per_second"])
    expect(page.locator('.painted[data-metric="loss"] path')).to_have_count(2)
    page.errors = page.errors.clear()  # type: ignore[attr-defined]


def test_job_without_metrics_shows_how_to_report_them_then_its_curves(lab: Lab, open_page: Open) -> None:
    page = open_page(PAGE)
    expect(page.get_by_role("heading", name="No metrics yet")).to_be_visible()
    expect(page.get_by_role("button", name="Copy the line")).to_be_visible()
    expect(page.locator("#metrics")).to_be_hidden()
    assert axe(page) == []
    name = "<img src=x onerror=alert(1)><b>loss</b>"
    lab.says(progress(1, **{name: 1}), progress(2, **{name: 2}))
    shown = page.locator(".chart-card")
    expect(shown.locator("canvas")).to_be_visible()
    expect(page.get_by_role("heading", name="No metrics yet")).to_be_hidden()
    expect(shown.locator("h2")).to_have_text(name)
    box = shown.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] / 2)
    expect(shown.locator(".chart-hover")).to_have_text(f"{name}: 1, step 1")
    assert page.locator("main img").count() == 0
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == "cnn_small-metrics.csv"
    assert download.value.path().read_text().splitlines()[1].startswith(f"1,{MASTER},{name},1,2026-")


def test_new_points_come_by_themselves_and_the_zoom_stays(lab: Lab, open_page: Open) -> None:
    lab.says(*(progress(step, loss=1 / step) for step in range(1, 101)))
    page = open_page(PAGE)
    drawn(page)
    eventually(page, "lines[0].x.length === 100")
    lab.says(progress(101, loss=7.5))
    eventually(page, "lines[0].x.at(-1) === 101")
    expect(card(page, "loss").locator("tbody tr")).to_contain_text("7.5")

    where = page.locator(".chart .u-over")
    where.scroll_into_view_if_needed()
    box = where.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + box["height"] * 0.52, steps=8)
    page.mouse.up()
    reset = page.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_visible()
    low, high = range_of(page)
    assert 20 < low < 35
    assert 70 < high < 85
    lab.says(progress(102, loss=0.25), progress(103, loss=0.25))
    eventually(page, "lines[0].x.at(-1) === 103")
    light = chart(page, "plot.series[1].stroke()")
    for _ in range(2):
        page.locator("#theme").click()  # light by hand, then dark
    eventually(page, f"plot.series[1].stroke() !== {light!r}")
    assert range_of(page) == (low, high)
    reset.click()
    eventually(page, "plot.scales.x.max > 100")
    expect(reset).to_be_hidden()


def test_zoomed_in_a_long_curve_has_all_of_its_points(lab: Lab, open_page: Open) -> None:
    for start in range(0, 12_000, 3000):
        lab.says(*(progress(step, loss=step % 7) for step in range(start, start + 3000)))
    page = open_page(PAGE)
    drawn(page)
    eventually(page, "lines[0].x.length > 100 && lines[0].x.length <= 1000")
    figure = card(page, "loss").locator(".chart")
    figure.focus()
    for _ in range(6):
        before, _ = range_of(page)
        figure.press("+")
        eventually(page, f"plot.scales.x.min !== {before}")
    low, high = range_of(page)
    assert 150 < high - low < 250
    eventually(page, f"lines[0].x.filter((x) => x >= {low} && x <= {high}).length >= {int(high - low)}")
    figure.press("0")
    eventually(page, "lines[0].x.length <= 1000")


def test_choices_are_in_the_address_and_go_along_to_a_comparison(lab: Lab, open_page: Open) -> None:
    lab.trains()
    page = open_page(PAGE)
    drawn(page)
    page.get_by_label("Smoothing").fill("0.6")
    page.get_by_label("X axis").select_option("time")
    card(page, "loss").get_by_role("button", name="Log").click()
    assert page.url.endswith("/metrics?smooth=0.6&log=loss&x=time")
    page.reload()
    drawn(page)
    eventually(page, "lines.length === 4")
    assert chart(page, "[picture.y.log, picture.x.title]") == [True, "minutes since the start"]
    assert page.get_by_label("Smoothing").input_value() == "0.6"
    assert chart(page, "lines.map((line) => line.opacity)").count(0.28) == 2
    field = page.get_by_role("combobox", name="Compare with")
    field.fill("wide")
    expect(page.locator("#compare-list li")).to_have_text([re.compile("^cnn_wide")])
    field.press("Enter")
    page.wait_for_url("**/compare?job=p/cnn_small&job=research/cnn_wide&smooth=0.6&log=loss&x=time")
    drawn(page)
    eventually(page, "lines.length === 8")
    expect(card(page, "loss").locator("tbody th")).to_have_text(
        [f"{job} · {name}" for job in ("p/cnn_small", "research/cnn_wide") for name in ("loss", "held_out_loss")]
    )
    page.goto(f"{PAGE}?with=research/cnn_wide&x=epoch")  # as addresses were
    page.wait_for_url("**/compare?job=p/cnn_small&job=research/cnn_wide&x=epoch")


def test_raw_lost_and_unordinary_values_are_shown(lab: Lab, open_page: Open) -> None:
    lab.says(*training(1, 600))
    lab.agent.stopped(WORKER, run=lab.run)
    lab.agent.exit(code=139, reason=Reason.KILLED_BY_SIGNAL, run=lab.run)
    again = lab.dashboard.placed(lab.agent, "cnn_small", after=1)
    lab.agent.start(again)
    resumed = [one for one in training(3, 900) if json.loads(one)["step"] > 400]
    lab.says(*resumed[: len(resumed) // 3], run=again)
    page = open_page(PAGE)
    drawn(page)
    assert chart(page, "picture.events.map(({ text }) => text)") == ["run 2"]
    steps = chart(page, "lines.find((line) => line.textOf).x")
    assert steps == sorted(set(steps))
    lost = chart(page, "lines.find((line) => line.opacity === 0.55).x")
    assert lost == list(range(steps[-1] + 10, 601, 10))

    zigzag = [1.0, 0.0, 1.0, 0.0]
    lab.says(*(progress(step, zigzag=value) for step, value in enumerate(zigzag, 701)), run=again)
    lab.says(progress(710, loss=math.nan), progress(720, loss=math.inf), run=again)
    crosses = "lines.find((line) => line.symbol === 'cross')"
    eventually(page, crosses)
    assert chart(page, f"{crosses}.x") == [710, 720]
    assert chart(page, f"[0, 1].map({crosses}.textOf)") == ["loss is NaN, step 710", "loss is ∞, step 720"]
    expect(card(page, "loss").locator("tbody tr").first).to_contain_text("∞")
    page.get_by_label("Smoothing").fill("0.5")
    drawn(page, "zigzag")
    raw, smooth = chart(page, "lines.map((line) => line.y)", "zigzag")
    assert raw == zigzag
    assert smooth == pytest.approx([1.0, 1 / 3, 5 / 7, 1 / 3])


def test_replicas_have_colours_and_curves_can_be_hidden(lab: Lab, open_page: Open) -> None:
    lab.trains()
    lab.says(*training(5, rate=260.0), task=WORKER)
    page = open_page(f"{PAGE}?x=epoch")
    drawn(page)
    rows = card(page, "loss").locator("tbody th")
    expect(rows).to_have_text(
        ["loss · master", "loss · worker 0", "held_out_loss · master", "held_out_loss · worker 0"]
    )
    assert chart(page, "picture.x.title") == "epoch"
    eventually(page, "lines.length === 4")
    card(page, "loss").get_by_role("button", name="loss · worker 0", exact=True).click()
    eventually(page, "lines.length === 3")
    page.get_by_label("Replica").select_option(label="worker 0")
    eventually(page, "lines.length === 1")
    assert "task=worker-replica-0" in page.url


def test_very_many_metrics_are_shown_some_at_a_time(lab: Lab, open_page: Open) -> None:
    for start in range(0, 100, 50):
        lab.says(progress(1, **{f"m{number}": number for number in range(start, start + 50)}))
    page = open_page(PAGE)
    expect(page.locator(".chart-card")).to_have_count(24)
    page.get_by_role("button", name="Show 24 more of 76").click()
    expect(page.locator(".chart-card")).to_have_count(48)
    page.get_by_label("Filter metrics").fill("m99")
    expect(page.locator(".chart-card")).to_have_count(1)
    assert page.url.endswith("?q=m99")
