"""The list of jobs as a table of runs: columns of parameters and metrics, groups, saved views, notes, ticks."""

import math
import re

import pytest
from playwright.sync_api import FloatRect, Locator, Page, expect

from browser.browser_support import DashboardServer, Open, Viewport, axe

RATES = ("0.3", "0.1", "0.03", "0.01")


@pytest.fixture
def tuned(dashboard: DashboardServer) -> DashboardServer:
    """Twenty jobs with a learning rate and an optimizer; 0.1 with adam is the best."""
    agent = dashboard.agent(cpus=2)
    for number in range(20):
        rate, optimizer = RATES[number % 4], ("adam", "sgd")[number // 4 % 2]
        labels = {"team": "vision"} if number % 3 else {"team": "vision", "stage": "final"}
        args = ["--lr", rate, "--optimizer", optimizer, "--epochs=5", f"--seed={number}"]
        run = dashboard.started(agent, f"cnn_{number:02}", labels=labels, args=args)
        for step in (100, 200, 300):
            best = 0.95 - abs(float(rate) - 0.1) - 0.1 * (optimizer == "sgd") - number / 1000 - 30 / step / 10
            agent.log(f'{{"step": {step}, "loss": {1 - best:.4f}, "accuracy": {best:.4f}}}', run=run)
        agent.exit(code=number % 7 == 6, run=run)
    return dashboard


LONG = "resnet_sgd_momentum_0_9_lr_0_1_batch_256"
LABELS = {"team": "vision", "stage": "sweep", "dataset": "imagenet-100", "priority": "low"}


@pytest.fixture
def crowded(dashboard: DashboardServer) -> DashboardServer:
    """Two projects with names that share a beginning, up to forty characters: jobs that run, wait and failed."""
    agent = dashboard.agent(cpus=2)
    why = "RuntimeError: gs://vision/imagenet-100/train has 126,689 of 128,512 images: shard 17 is damaged"
    failed = dashboard.started(agent, LONG.replace("0_1", "0_3"), labels=LABELS, project="vision")
    agent.log("Traceback (most recent call last):", why, run=failed)
    agent.exit(code=1, run=failed)
    for rate, project in (("0_1", "vision"), ("0_2", "p")):
        running = dashboard.started(agent, LONG.replace("0_1", rate), labels=LABELS, project=project)
        for step in range(100, 1300, 100):
            agent.log(f'{{"event": "progress", "step": {step}, "steps": 45000, "loss": {100 / step}}}', run=running)
    dashboard.submit(LONG.replace("0_1", "0_4"), labels=LABELS, workerCount="7", workerType="local-1")
    return dashboard


def row(page: Page, job: str) -> Locator:
    return page.locator("[data-row]").filter(has=page.get_by_role("link", name=job, exact=True))


def headings(page: Page) -> list[str]:
    return page.locator("thead th").all_inner_texts()


def box(element: Locator) -> FloatRect:
    bounds = element.bounding_box()
    assert bounds is not None
    return bounds


def widths(page: Page) -> list[float]:
    return [box(heading)["width"] for heading in page.locator("thead th").all()]


def drag(page: Page, handle: Locator, to: Locator, by: int = 0) -> None:
    """Drag from the middle of a handle to the middle of another element, or `by` pixels to the right of it."""
    start, end = box(handle), box(to)
    page.mouse.move(start["x"] + start["width"] / 2, start["y"] + start["height"] / 2)
    page.mouse.down()
    page.mouse.move(end["x"] + end["width"] / 2 + by, end["y"] + end["height"] / 2, steps=4)
    page.mouse.up()


def test_twenty_jobs_with_their_parameters_fit_on_a_screen(tuned: DashboardServer, open_page: Open) -> None:
    page = open_page("/")
    page.set_viewport_size({"width": 1280, "height": 860})
    rows = page.locator("[data-row]")
    expect(rows).to_have_count(20)
    expect(page.locator("th.col-value")).to_have_text(["lr", "optimizer", "seed"])
    last = box(rows.last)
    assert last["y"] + last["height"] <= 860


def test_names_of_forty_characters_and_reasons_are_readable(crowded: DashboardServer, open_page: Open) -> None:
    page = open_page("/")
    for viewport in (Viewport.WIDE, Viewport.LIGHT):
        page.set_viewport_size({"width": viewport.width, "height": viewport.height})
        assert (
            page.locator("[data-row] .name").evaluate_all(
                "names => names.map((name) => [name.textContent.length, name.scrollWidth <= name.clientWidth])"
            )
            == [[40, True]] * 4
        )
        assert page.locator(".scroll").evaluate("scroll => scroll.scrollWidth <= scroll.clientWidth")
        controls = page.locator("#filters :is(input, select, summary, button:not(.hidden), .button):visible").all()
        assert len({box(control)["y"] for control in controls}) == 1
    assert headings(page) == ["", "State", "Job", "Project", "Metric", "Progress", "Time", "Owner", "Created"]
    expect(row(page, LONG).locator(".name .shared")).to_have_text("resnet_sgd_momentum_0_9_lr_")
    for rate, reason in (
        ("0_3", "RuntimeError: gs://vision/imagenet-100"),
        ("0_4", "#1 · can never start on the agents here"),
    ):
        why = row(page, LONG.replace("0_1", rate)).locator(".reason")
        expect(why).to_contain_text(reason)
        cell, metric = box(why.locator("..")), box(page.locator("th.col-metric"))
        assert cell["x"] == metric["x"]
        assert cell["width"] > metric["width"]


def test_labels_without_room_fold_and_unfold(crowded: DashboardServer, open_page: Open) -> None:
    page = open_page("/")
    waiting = row(page, LONG.replace("0_1", "0_4"))
    more = waiting.get_by_role("button", name="All labels of")
    expect(more).to_have_text(re.compile(r"\+[34]"))
    expect(waiting.get_by_role("link", name="dataset=imagenet-100")).to_have_count(0)
    more.focus()
    page.keyboard.press("Enter")
    expect(more).to_have_attribute("aria-expanded", "true")
    for name, value in LABELS.items():
        chip = waiting.get_by_role("link", name=f"{name}={value}")
        expect(chip).to_be_visible()
        assert chip.evaluate("chip => chip.scrollHeight <= chip.clientHeight + 1")
    crowded.api.cancel(LONG.replace("0_1", "0_4"))
    expect(waiting).to_contain_text("Cancelled")
    expect(waiting.get_by_role("link", name="dataset=imagenet-100")).to_be_visible()
    more.click()
    expect(waiting.get_by_role("link", name="dataset=imagenet-100")).to_have_count(0)


def test_columns_are_dragged_and_stay_where_they_were_dropped(crowded: DashboardServer, open_page: Open) -> None:
    page = open_page("/")
    usual = headings(page)
    moved = ["", "State", "Progress", "Job", "Project", "Metric", "Time", "Owner", "Created"]
    drag(page, page.locator("th.col-progress"), page.locator("th.col-job"), by=-100)
    expect(page.locator("thead th")).to_have_text(moved)
    page.locator("th.col-metric").focus()
    page.keyboard.press("Alt+ArrowRight")
    moved[5:7] = ["Time", "Metric"]
    expect(page.locator("thead th")).to_have_text(moved)
    expect(page.locator("th.col-metric")).to_be_focused()
    owner = page.locator("th.col-owner")
    before = box(owner)
    drag(page, owner.locator("[data-edge]"), owner.locator("[data-edge]"), by=80)
    page.locator("th.col-job a").focus()
    for _ in range(8):
        page.keyboard.press("Alt+Shift+ArrowLeft")
    resized = widths(page)
    assert resized[7] == math.ceil(before["width"]) + 80
    beginning = row(page, LONG).locator(".shared")
    assert beginning.evaluate("shared => shared.scrollWidth > shared.clientWidth")
    page.goto("/?sort=name")
    expect(page.locator("thead th")).to_have_text(moved)
    assert widths(page) == resized
    crowded.api.cancel(LONG.replace("0_1", "0_4"))  # an update of the page keeps both
    expect(row(page, LONG.replace("0_1", "0_4"))).to_contain_text("Cancelled")
    assert widths(page) == resized
    expect(page.locator("thead th")).to_have_text(moved)
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("link", name="Default columns").click()
    expect(page.locator("thead th")).to_have_text(usual)
    assert beginning.evaluate("shared => shared.scrollWidth <= shared.clientWidth")


def test_columns_are_chosen_ordered_and_sorted_by(tuned: DashboardServer, open_page: Open) -> None:
    page = open_page("/?column=job&column=params.lr")
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("Another one").fill("metrics.loss@200")
    page.get_by_role("group", name="Metrics, best").get_by_label("accuracy best").check()
    page.get_by_role("button", name="Move lr to the front").click()
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**/?column=params.lr&column=job&**")
    expect(page.locator("thead th")).to_have_text(["", "lr", "Job", "loss @200", "accuracy best"])
    page.locator("thead").get_by_role("link", name="accuracy best").click()
    expect(page.locator("[data-row] .name").first).to_have_text("cnn_01")
    expect(page.locator("[data-row] .best")).to_have_text(["0.066", "0.939"])
    expect(page.locator("[data-row]").first.get_by_role("cell")).to_have_text(
        ["", "0.1", "cnn_01 team=vision", "0.066", "0.939"]
    )
    drag(page, page.locator("thead").get_by_text("accuracy best"), page.locator("th.col-job"), by=-30)
    page.wait_for_url("**/?sort=-metrics.accuracy.best&column=params.lr&column=metrics.accuracy.best&column=job&**")


def test_groups_have_the_mean_and_the_best_of_each_metric(tuned: DashboardServer, open_page: Open) -> None:
    page = open_page("/?filter=state%3ASUCCEEDED&column=metrics.accuracy.best")
    page.locator("summary").get_by_text("More").click()
    page.get_by_label("Group by").select_option("params.lr")
    rows = page.get_by_role("table", name="Groups of jobs by params.lr").locator("tbody tr")
    expect(rows).to_have_count(4)
    best = rows.filter(has=page.get_by_role("link", name="0.1", exact=True))
    expect(best.get_by_role("cell").last).to_have_text("0.939")
    assert axe(page) == []
    best.get_by_role("link", name="0.1").click()
    expect(page.locator("table.jobs [data-row]")).to_have_count(4)
    assert page.url.endswith("filter=%28state%3ASUCCEEDED%29+AND+params.lr%3D%220.1%22")


def test_a_view_is_saved_opened_and_deleted(tuned: DashboardServer, open_page: Open) -> None:
    page = open_page("/?column=job&column=params.lr&sort=params.lr")
    page.get_by_role("button", name="Save view").click()
    page.get_by_role("dialog").get_by_label("Name").fill("by rate")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_function("() => document.getElementById('views')?.options.length === 2")
    page.goto("/")
    page.get_by_label("Saved views").select_option("by rate")
    page.wait_for_url("**/?column=job&column=params.lr&sort=params.lr")
    expect(page.locator("[data-row] .name").first).to_have_text("cnn_03")
    page.get_by_role("button", name="Save view").click()
    page.get_by_role("button", name="Delete the chosen view").click()
    expect(page.get_by_label("Saved views")).to_have_count(0)


def test_a_note_is_edited_in_its_cell_and_labels_are_added_to_what_is_ticked(
    tuned: DashboardServer, open_page: Open
) -> None:
    page = open_page("/?column=job&column=note&column=labels.keep")
    page.get_by_role("button", name="Edit the note of cnn_05").click()
    page.get_by_label("Note of cnn_05").fill("diverges <b>late</b>")
    page.get_by_label("Note of cnn_05").press("Enter")
    row = page.locator("[data-row]").filter(has=page.get_by_role("link", name="cnn_05"))
    expect(row.locator(".col-note")).to_have_text("diverges <b>late</b>")
    for job in ("cnn_05", "cnn_06"):
        page.get_by_label(f"Select {job}").check()
    expect(page.get_by_role("link", name="Compare")).to_have_attribute("href", "/compare?job=p%2Fcnn_06&job=p%2Fcnn_05")
    expect(page.get_by_role("button", name="Cancel them")).to_be_hidden()
    page.get_by_role("button", name="Add label").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("keep=yes")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(row.get_by_role("cell").last).to_have_text("yes")
    page.goto("/?filter=note:diverges")
    expect(page.locator("[data-row]")).to_have_count(1)
