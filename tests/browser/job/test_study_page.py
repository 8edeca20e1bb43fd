"""The page of a study: what it draws, and how trials are selected."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from browser.browser_support import DashboardServer, Open, axe, in_each_viewport, is_within_window
from browser.link import linked
from browser.quiet_network import QuietNetwork
from browser.showcase import ShowClock
from integration.api.api_support import ScriptedAgent, server, serving
from integration.api.jobs.test_studies import finish, runs

STUDY = "/projects/p/jobs/digits_tuning"
VALUES = (0.71, 0.88, 0.64, 0.93, 0.8, 0.9, 0.76, 0.95, 0.91, 0.85, 0.97)
SPEC = {
    "goal": "MAXIMIZE",
    "hyperparameterMetricTag": "held_out_accuracy",
    "maxTrials": 12,
    "maxParallelTrials": 1,
    "algorithm": "RANDOM_SEARCH",
    "params": [
        {
            "parameterName": "learning-rate",
            "type": "DOUBLE",
            "minValue": 0.0001,
            "maxValue": 0.1,
            "scaleType": "UNIT_LOG_SCALE",
        },
        {"parameterName": "layers", "type": "INTEGER", "minValue": 1, "maxValue": 4},
        {
            "parameterName": "optimizer",
            "type": "CATEGORICAL",
            "categoricalValues": ["adam", "momentum"],
            "childParameterSpecs": [
                {
                    "parameterName": "warmup",
                    "type": "DISCRETE",
                    "discreteValues": [0, 0.25, 0.5],
                    "parentCategoricalValues": {"values": ["momentum"]},
                }
            ],
        },
    ],
}


class StudyClock(ShowClock):
    """Hours behind, and moved on by the test."""

    def __init__(self) -> None:
        self.behind = timedelta(hours=2)

    def advance(self, seconds: float) -> None:
        self.behind = max(timedelta(0), self.behind - timedelta(seconds=seconds))


@pytest.fixture(scope="module")
def studies(
    tmp_path_factory: pytest.TempPathFactory, network: QuietNetwork
) -> Iterator[tuple[DashboardServer, ScriptedAgent]]:
    """A study whose twelfth trial runs, and one that has ended; shared by the tests."""
    directory = tmp_path_factory.mktemp("studies")
    with ExitStack() as stack:
        changes: dict[str, Any] = {"run_loops": False, "silent_after_s": 36_000.0}
        api = stack.enter_context(server(directory, StudyClock(), **changes))  # type: ignore[arg-type]
        url = stack.enter_context(serving(api.app))
        link = stack.enter_context(linked(network.listening(), url))
        shown = DashboardServer(api, link)
        agent = shown.agent(cpus=1)
        shown.submit("finished", hyperparameters=SPEC | {"maxTrials": 1})
        api.tick()
        finish(agent, runs(agent)[1], 0.5)
        shown.submit("digits_tuning", hyperparameters=SPEC, jobDir="gs://models/digits")
        api.tick()
        for number, value in enumerate(VALUES, 1):
            run = runs(agent)[number]
            agent.start(run)
            api.tick(240 + 30 * number)
            finish(agent, run, value / 2, value, code=1 if number == 3 else 0)
        agent.start(runs(agent)[12])
        yield shown, agent


@pytest.fixture
def dashboard(studies: tuple[DashboardServer, ScriptedAgent]) -> DashboardServer:
    return studies[0]


def opened(open_page: Open) -> Page:
    page = open_page(STUDY)
    expect(page.locator("#parallel path")).to_have_count(12)
    return page


def rows(page: Page) -> Locator:
    return page.locator("#trials tbody tr")


def test_study_is_shown_in_each_viewport(open_page: Open) -> None:
    page = opened(open_page)
    expect(page.locator("#live-verdict")).to_contain_text("0.97 held_out_accuracy of trial 11")
    expect(page.locator("#live-verdict")).to_contain_text("11 of 12 trials ended")
    expect(page.locator("#live-now tbody tr")).to_have_count(1)
    page.locator("#best-chart").scroll_into_view_if_needed()
    expect(page.locator("#best-chart canvas").first).to_be_visible(timeout=30_000)
    expect(page.locator("#live-importance tbody tr").first).to_contain_text("%")
    expect(rows(page)).to_have_count(12)
    expect(rows(page).first).to_contain_text("best")  # the best first
    page.locator("details.ranges summary").click()
    for viewport in in_each_viewport(page):
        assert axe(page, viewport) == []
        assert is_within_window(page)


def test_ranges_select_trials_by_keyboard_and_by_dragging(open_page: Open) -> None:
    page = opened(open_page)
    page.locator("details.ranges summary").focus()
    page.keyboard.press("Enter")
    page.get_by_role("group", name="held_out_accuracy").get_by_label("from").focus()
    page.keyboard.type("0.9")
    page.keyboard.press("Tab")
    expect(page.locator("#trials-count")).to_have_text("5 of 12 trials selected")
    expect(rows(page)).to_have_count(5)
    expect(page.locator("#parallel path.off")).to_have_count(7)
    expect(page.locator("#parallel svg")).to_have_attribute("aria-label", re.compile("5 of them selected"))
    expect(page.locator("#curves")).to_have_attribute("href", re.compile(r"/compare\?job=p%2Fdigits_tuning\.11&job="))
    page.get_by_role("button", name="held_out_accuracy").press("Enter")
    expect(rows(page).first).to_contain_text("0.9")
    page.get_by_role("button", name="Select all").press("Enter")
    expect(rows(page)).to_have_count(12)

    page.locator("#parallel").scroll_into_view_if_needed()
    handle = page.locator('#parallel .axis[data-axis="1"] .handle').bounding_box()
    assert handle is not None
    x = handle["x"] + handle["width"] / 2
    page.mouse.move(x, handle["y"] + 2)
    page.mouse.down()
    page.mouse.move(x, handle["y"] + handle["height"] / 2, steps=4)
    page.mouse.up()
    expect(page.get_by_role("group", name="layers").get_by_label("from")).to_have_value(re.compile(r"2\.\d+"))
    chosen = rows(page).evaluate_all("all => all.map((row) => Number(row.children[5].textContent))")
    assert chosen
    assert all(value in (3, 4) for value in chosen)
    page.mouse.click(x, handle["y"] + 20)
    expect(rows(page)).to_have_count(12)


def test_trial_leads_to_its_study_and_lists_mark_studies(open_page: Open) -> None:
    page = opened(open_page)
    page.locator("#trials a.name", has_text=re.compile("^4$")).click()
    expect(page.locator("#job .badge")).to_have_text("trial 4")
    expect(page.locator("#live-facts")).to_contain_text("learning-rate")
    page.locator("#live-facts").get_by_role("link", name="digits_tuning").click()
    expect(page.locator("#job .badge")).to_have_text("study")
    page.goto("/")
    row = page.locator("tr", has_text="finished")
    expect(row.locator(".badge")).to_have_text("study")
    row.get_by_role("link", name="finished").click()
    expect(page.get_by_role("heading", name="Best trial")).to_be_visible()
    expect(page.locator("#live-now")).to_contain_text("No trial.")


def test_running_study_is_followed(studies: tuple[DashboardServer, ScriptedAgent], open_page: Open) -> None:
    page = opened(open_page)
    dashboard, agent = studies
    highest = page.locator("#ranges fieldset").last.locator("input").last
    expect(highest).to_have_attribute("placeholder", "0.97")
    link = page.locator("#trials a.name", has_text=re.compile("^4$"))
    link.focus()
    run = runs(agent)[12]
    agent.measure(run, 0.99)
    agent.sync()
    dashboard.api.tick()
    expect(page.locator("#live-verdict .big")).to_contain_text("trial 12")
    expect(rows(page).first).to_contain_text("12best")
    expect(link).to_be_focused()
    expect(highest).to_have_attribute("placeholder", "0.99")
    agent.exit(run=run)
    dashboard.api.tick()
    expect(page.locator("#job")).to_contain_text("Succeeded")
    expect(rows(page).first).to_contain_text("Succeeded")
