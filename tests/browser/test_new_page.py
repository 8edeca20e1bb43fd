"""A new job in the browser: what is typed is checked, marked, corrected and sent."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from browser.browser_support import DashboardServer, Open, Viewport, axe
from integration.api.api_support import ADMIN, eventually

GOOD = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: local-1
  pythonModule: trainer.task
"""

SHOWN = """\
# digits, once more
trainingInput:
  scaleTier: CUSTOM
  masterType: local-4
  workerType: local-4
  workerCount: 3
  pythonModule: trainer.task
  runtimeVersion: "2.11"
  scheduling:
    maxRunningTime: 7200s
"""


def type_config(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Config").fill(text)


def expect_taken(page: Page) -> None:
    expect(page.locator("#status")).to_have_text("The server would accept it")


def test_lost_indentation_is_restored_by_a_button(dashboard: DashboardServer, open_page: Open) -> None:
    dashboard.agent()
    page = open_page("/new")
    type_config(page, "".join(f"{line.strip()}\n" for line in SHOWN.splitlines()))
    page.get_by_role("button", name="Restore the indentation").click()
    expect(page.get_by_role("textbox", name="Config")).to_have_value(SHOWN)


def test_mistake_is_marked_at_its_line_and_gone_when_it_is_corrected(
    dashboard: DashboardServer, open_page: Open
) -> None:
    dashboard.agent()
    page = open_page("/new")
    expect(page.locator("#status")).to_have_text("Nothing to check yet.")
    type_config(page, GOOD.replace("scaleTier", "scaleTeir"))
    expect(page.locator("#status")).to_have_text(re.compile(r"\d problems?"))
    problem = page.get_by_role("button", name=re.compile('Line 2 "scaleTeir" is not a field'))
    expect(problem).to_contain_text('Did you mean "scaleTier"?')
    expect(page.locator(".numbers .p-error")).to_have_text("2")
    expect(page.locator(".sheet .p-error")).to_have_text("scaleTeir")
    problem.click()
    area = page.get_by_role("textbox", name="Config")
    expect(area).to_be_focused()
    assert area.evaluate("it => it.value.slice(it.selectionStart, it.selectionEnd)") == "scaleTeir"
    page.keyboard.type("scaleTier")
    expect_taken(page)
    expect(page.locator(".numbers .p-error")).to_have_count(0)
    expect(page.locator("#problems li")).to_have_count(0)
    expect(page.locator("#details")).to_contain_text("It would start now, on agent laptop.")
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url("**/projects/local/jobs/job_*")


def test_newest_answer_wins_over_an_older_one_that_is_late(dashboard: DashboardServer, open_page: Open) -> None:
    page = open_page("/new")
    held: list[Route] = []
    page.route("**/configs:check", lambda route: held.append(route))
    type_config(page, "trainingInput:\n  scaleTeir: BASIC\n")

    def is_held() -> bool:
        page.wait_for_timeout(10)  # lets the browser's events come
        return bool(held)

    eventually(is_held)
    page.unroute("**/configs:check")
    type_config(page, GOOD)
    expect_taken(page)
    expect(page.locator("#problems li")).to_have_count(0)


def test_check_is_repeated_when_the_server_is_back(open_page: Open) -> None:
    page = open_page("/new")
    page.route("**/configs:check", lambda route: route.abort())
    type_config(page, GOOD)
    expect(page.locator("#status")).to_have_text("Not checked: The server does not answer.")
    page.unroute("**/configs:check")
    expect_taken(page)
    page.errors.clear()  # type: ignore[attr-defined]  # the browser logs what did not get through


def test_everything_beside_the_config_is_sent_with_it(
    dashboard: DashboardServer, open_page: Open, tmp_path: Path
) -> None:
    package = tmp_path / "trainer-1.0.tar.gz"
    package.write_bytes(b"a package")
    page = open_page("/new?project=research", role="submitter")
    type_config(page, GOOD)
    page.get_by_label("Job id").fill("my_job")
    page.get_by_label(re.compile("^Arguments")).fill("--lr 0.1 --note 'two words'")
    page.get_by_label("Job directory").fill("/out/my_job")
    page.get_by_label("Labels").fill("team=vision, stage=final")
    page.locator("#package-file").set_input_files(package)
    expect(page.locator("#packages")).to_contain_text("trainer-1.0.tar.gz")
    expect_taken(page)
    given = ["--lr", "0.1", "--note", "two words", "--job-dir", "/out/my_job"]
    expect(page.locator("ol.args li")).to_have_text(given)
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url("**/projects/research/jobs/my_job")
    job = dashboard.api.get("/v1/projects/research/jobs/my_job")
    assert dashboard.api.get("/trainyard/v1/projects/research/jobs/my_job")["owner"] == "alice"
    assert job["labels"] == {"team": "vision", "stage": "final"}
    assert job["trainingInput"]["args"] == ["--lr", "0.1", "--note", "two words"]
    assert job["trainingInput"]["jobDir"] == "/out/my_job"
    assert job["trainingInput"]["packageUris"][0].endswith("/trainer-1.0.tar.gz")


def test_message_is_beside_a_wrong_field(open_page: Open) -> None:
    page = open_page("/new")
    type_config(page, GOOD)
    expect_taken(page)
    for label, text, message in (
        ("Job id", "1st", "should start with a letter"),
        ("Labels", "Team=x", "has the key 'Team'"),
        ("Job directory", "gs://", "names no bucket"),
        ("Project", "-x", "is not a project"),
    ):
        field = page.get_by_label(label, exact=True)
        field.fill(text)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(page.locator(f"#{field.get_attribute('id')}-wrong")).to_contain_text(message)


def test_id_that_exists_meanwhile_is_marked_and_another_suggested(dashboard: DashboardServer, open_page: Open) -> None:
    page = open_page("/new?project=p")
    type_config(page, GOOD)
    page.get_by_label("Job id").fill("twice")
    expect_taken(page)
    dashboard.submit("twice")
    page.get_by_role("button", name="Submit the job").click()
    expect(page.locator("#job_id-wrong")).to_contain_text("already exists")
    assert page.get_by_role("textbox", name="Config").input_value() == GOOD
    page.get_by_role("button", name="Use twice_2").click()
    expect_taken(page)
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url("**/jobs/twice_2")
    page.errors.clear()  # type: ignore[attr-defined]  # the browser logs the 409


def test_clone_is_filled_in_and_sent_under_a_new_name(dashboard: DashboardServer, open_page: Open) -> None:
    dashboard.submit("base", labels={"team": "vision"}, args=["--lr", "0.1", "a b"], jobDir="/out/base")
    page = open_page("/projects/p/jobs/base")
    page.get_by_role("link", name="Clone").click()
    expect(page.get_by_label("Job id")).to_have_value("base_2")
    expect(page.get_by_label(re.compile("^Arguments"))).to_have_value("--lr 0.1 'a b'")
    expect(page.get_by_label("Job directory")).to_have_value("/out/base_2")
    expect(page.get_by_label("Labels")).to_have_value("team=vision")
    expect_taken(page)
    page.get_by_label(re.compile("^Arguments")).fill("--lr 0.2")
    expect_taken(page)
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**/projects/p/jobs/base_2")
    clone = dashboard.api.get("/v1/projects/p/jobs/base_2")
    assert clone["trainingInput"]["args"] == ["--lr", "0.2"]
    assert clone["labels"] == {"team": "vision"}


def test_clone_with_the_same_directory_has_a_note(dashboard: DashboardServer, open_page: Open) -> None:
    dashboard.submit("base", jobDir="gs://bucket/shared")
    page = open_page("/new?from=p/base")
    expect(page.get_by_label("Good to know")).to_contain_text("writes to the same directory as base")


def test_typed_text_is_restored_after_the_session_ended(dashboard: DashboardServer, open_page: Open) -> None:
    page = open_page("/new", role="submitter")
    page.get_by_label("Job id").fill("mine")
    type_config(page, GOOD)
    expect_taken(page)
    page.context.clear_cookies()
    type_config(page, GOOD + "  args: [kept]\n")
    page.wait_for_url("**/sign-in?next=%2Fnew")
    dashboard.sign_in(page.context, "submitter")
    page.goto("/new")
    expect(page.locator("#restored")).to_be_visible()
    expect(page.get_by_role("textbox", name="Config")).to_have_value(GOOD + "  args: [kept]\n")
    expect(page.get_by_label("Job id")).to_have_value("mine")
    page.get_by_role("button", name="Start over").click()
    expect(page.get_by_role("textbox", name="Config")).to_have_value("")
    page.errors.clear()  # type: ignore[attr-defined]  # the browser logs the 401


def test_tab_indents_and_escape_then_tab_leaves(open_page: Open) -> None:
    page = open_page("/new")
    area = page.get_by_role("textbox", name="Config")
    area.focus()
    page.keyboard.type("trainingInput:\n")
    page.keyboard.type("scaleTier: BASIC")
    expect(area).to_have_value("trainingInput:\n  scaleTier: BASIC")
    page.keyboard.press("Tab")
    expect(area).to_have_value("trainingInput:\n  scaleTier: BASIC  ")
    page.keyboard.press("Shift+Tab")
    expect(area).to_have_value("trainingInput:\nscaleTier: BASIC  ")
    page.keyboard.press("Control+z")
    expect(area).to_have_value("trainingInput:\n  scaleTier: BASIC  ")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(page.get_by_label(re.compile("^Arguments"))).to_be_focused()


def test_examples_are_jobs_that_the_server_would_accept(open_page: Open) -> None:
    page = open_page("/new")
    for name in ("quickstart", "parameter-servers", "custom-image"):
        page.get_by_label("Start from an example").select_option(name)
        expect_taken(page)
        assert page.locator("#editor").evaluate("it => it.scrollLeft") == 0  # the numbers cover nothing
        page.keyboard.press("Control+z")
        expect(page.get_by_role("textbox", name="Config")).to_have_value("")
        expect(page.locator("#status")).to_have_text("Nothing to check yet.")


def test_config_comes_from_a_file_and_a_file_may_be_json(open_page: Open, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{\r\n\t"trainingInput": {"pythonModule": "trainer.task"}\r\n}\r\n')
    page = open_page("/new")
    page.locator("#config-file").set_input_files(file)
    expect_taken(page)
    expect(page.locator(".sheet .y-key").first).to_have_text('"trainingInput"')


def test_what_looks_like_markup_is_text(open_page: Open) -> None:
    page = open_page("/new")
    evil = '<script>document.title="gone"</script><img src=x onerror=alert(1)>'
    type_config(page, f"trainingInput:\n  {evil}: 1\nlabels: {{a: '{evil}'}}\n")
    expect(page.locator("#problems")).to_contain_text('<script>document.title="gone"</script>')
    expect(page.locator(".sheet")).to_contain_text(evil)
    expect(page).to_have_title("New job · Trainyard")
    page.get_by_label("Labels").fill(f"a={evil}")
    expect(page.locator("#labels-wrong")).to_contain_text("<script>")
    assert page.locator(".sheet img, #problems img, #labels-wrong img").count() == 0


PAINTED = (
    GOOD,
    "a: 'it''s' # c\nb: \"#no\"\nc: |\n  x: 1\n\n  # text\nd: [1, -2.5e3, yes, *x, {k: v}]\n- - e\n",
    "\u00fc\U0001f600: <b>\n\ttab\n   \n\n",
    "'open\n\"open\n: : ::\n#\n- \n",
)


def test_painted_text_is_the_text_with_marks_at_their_places(open_page: Open) -> None:
    page = open_page("/new")
    for text in PAINTED:
        type_config(page, text)
        shown = page.evaluate("() => [...document.querySelectorAll('.sheet .row')].map((it) => it.textContent)")
        assert shown == text.split("\n")
        assert len(shown) == page.locator(".numbers > div").count()
    type_config(page, 'trainingInput: {args: ["\U0001f600\U0001f600", true], pythonModule: a.b}\n')
    expect(page.locator(".sheet .p-error")).to_have_text("true")  # after characters of two units


def test_lines_and_their_numbers_stand_at_the_same_height(open_page: Open) -> None:
    page = open_page("/new")
    type_config(page, "\n".join(f"key_{number}: value" for number in range(200)))
    heights = page.evaluate(
        """() => {
          const top = (selector, at) => document.querySelectorAll(selector)[at].getBoundingClientRect().top;
          const area = document.getElementById('config');
          return [top('.sheet > .row', 199) - top('.sheet > .row', 0),
                  top('.numbers > div', 199) - top('.numbers > div', 0),
                  199 * parseFloat(getComputedStyle(area).lineHeight),
                  area.scrollHeight - area.clientHeight];
        }"""
    )
    assert heights[0] == pytest.approx(heights[1], abs=0.1)
    assert heights[0] == pytest.approx(heights[2], abs=0.1)
    assert heights[3] <= 0  # nothing scrolls within the text area itself: it would not be painted


def test_viewer_cannot_submit(dashboard: DashboardServer, open_page: Open) -> None:
    dashboard.submit("base")
    page = open_page("/new", role="viewer")
    expect(page.get_by_role("heading", name="You can view jobs, but not submit them")).to_be_visible()
    expect(page.get_by_role("link", name="New job")).to_have_count(0)
    assert axe(page) == []
    page.goto("/projects/p/jobs/base/config")
    expect(page.get_by_role("link", name="Clone")).to_have_count(0)
    status = page.evaluate(
        """async () => {
          const { call } = await import(document.querySelector('script[type=module]').src.replace('app.js', 'api.js'));
          const ask = (path, body) => call('POST', path, body).then(() => 200, (error) => error.status);
          const check = '/trainyard/v1/projects/p/configs:check';
          return [await ask('/v1/projects/p/jobs', {jobId: 'x'}), await ask(check, {config: 'a: 1'})];
        }"""
    )
    assert status == [403, 200]
    page.errors.clear()  # type: ignore[attr-defined]  # the browser logs the 403


@pytest.mark.parametrize("viewport", Viewport)
def test_new_job_page_in_each_viewport(dashboard: DashboardServer, open_page: Open, viewport: Viewport) -> None:
    dashboard.agent("gpu-host", cpus=32, memory_gb=128)
    dashboard.agent("small", cpus=2)
    page = open_page("/new?project=research", viewport=viewport)
    page.get_by_label("Job id").fill("digits_cnn_2")
    page.get_by_label(re.compile("^Arguments")).fill("--epochs 20 --learning-rate 0.003")
    page.get_by_label("Labels").fill("team=vision, stage=final")
    type_config(page, SHOWN)
    expect_taken(page)
    assert axe(page, viewport) == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    wrong = SHOWN.replace("workerCount: 3", "workerCount: three").replace('"2.11"', "2.10")
    type_config(page, wrong.replace("maxRunningTime", "maxRunTime"))
    expect(page.locator("#status")).to_have_text("3 problems")
    expect(page.locator(".numbers .p-error")).to_have_text(["6", "8", "10"])
    assert axe(page, viewport) == []


def test_clone_of_a_missing_job_is_an_error_page(dashboard: DashboardServer, open_page: Open) -> None:
    answer = dashboard.api.client.get("/new?from=p/none", headers=ADMIN | {"Accept": "text/html"})
    assert answer.status_code == 404
