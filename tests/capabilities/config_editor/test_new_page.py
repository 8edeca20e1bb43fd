"""A new job in the browser: a program is dropped, a config is typed; both are checked, corrected and sent."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from browser.browser_support import DashboardServer, Open, axe, in_each_viewport, is_within_window
from integration.api.api_support import eventually

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


SCRIPT = """print("step 1 loss 0.5")\n"""

LONG_NAME = "data/" + "\u6570" * 40 + ".txt"
FOLDER: Mapping[str, str] = {
    "project/train.py": "import helper\n",
    "project/helper.py": SCRIPT,
    "project/requirements.txt": "numpy\n",
    "project/.env": "TOKEN=a-secret\n",
    "project/.git/config": "[core]\n\tfsmonitor = touch /tmp/x\n",
    "project/__pycache__/helper.pyc": "x",
    "project/.venv/pyvenv.cfg": "home = /usr\n",
    "project/.venv/lib/large.py": "x",
    f"project/{LONG_NAME}": "120 bytes and more",
}


def choose(page: Page, tab: str) -> None:
    page.get_by_role("tab", name=tab).click()


def type_config(page: Page, text: str) -> None:
    choose(page, "YAML")
    page.get_by_role("textbox", name="Config").fill(text)


def files(directory: Path, contents: Mapping[str, str]) -> list[Path]:
    for name, text in contents.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return [directory / name for name in contents]


def drop(page: Page, *paths: Path) -> None:
    """Drop files and directories, as the browser gets them from the desktop."""
    zone = page.locator("#drop").bounding_box()
    assert zone is not None
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    session = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        place = {"type": kind, "x": zone["x"] + 5, "y": zone["y"] + 5, "data": data}
        session.send("Input.dispatchDragEvent", place)


def expect_taken(page: Page) -> None:
    expect(page.locator("#status")).to_have_text("Ready to submit")


def test_dropped_script_is_packed_planned_and_submitted(
    dashboard: DashboardServer, open_page: Open, tmp_path: Path
) -> None:
    dashboard.agent(cpus=4, memory_gb=16)
    page = open_page("/new?project=p", role="submitter")
    submit, reason = page.get_by_role("button", name="Submit the job"), page.locator("#reason")
    expect(submit).to_be_disabled()
    expect(reason).to_have_text("Choose a program first.")
    drop(page, *files(tmp_path, {"train.py": SCRIPT, "requirements.txt": "numpy\n"}))
    plan = page.get_by_role("region", name="Program", exact=True)
    expect(plan).to_contain_text("Runs python train.py")
    expect(plan).to_contain_text("Installs first: requirements.txt")
    page.get_by_label("Job id").fill("dropped")
    page.get_by_label(re.compile("^Arguments")).fill("--lr 0.1")
    page.get_by_label(re.compile("^Machine")).select_option(label="2 CPUs, 4 GB (local-2)")
    page.get_by_role("spinbutton", name="Replicas").fill("0")
    expect(reason).to_have_text("Replicas: a whole number from 1 to 100.")
    page.get_by_role("spinbutton", name="Replicas").fill("2")
    expect_taken(page)
    expect(page.get_by_role("region", name="Replicas")).to_contain_text("2 replicas: 4 vCPU")
    expect(reason).to_have_text("")
    submit.click()
    page.wait_for_url("**/projects/p/jobs/dropped")
    sent = dashboard.api.get("/v1/projects/p/jobs/dropped")["trainingInput"]
    assert sent["packageUris"][0].endswith("/trainyard_program-0.0.0-py3-none-any.whl")
    assert (sent["masterType"], sent["workerType"], sent["workerCount"]) == ("local-2", "local-2", "1")
    assert (sent["pythonModule"], sent["args"]) == ("train", ["--lr", "0.1"])


@pytest.mark.parametrize("is_dropped", [True, False])
def test_folder_is_sent_without_what_is_no_part_of_the_program(
    open_page: Open, tmp_path: Path, is_dropped: bool
) -> None:
    files(tmp_path, FOLDER)
    page = open_page("/new")
    if is_dropped:
        drop(page, tmp_path / "project")
    else:
        page.locator("#program-folder").set_input_files(tmp_path / "project")
    plan = page.get_by_role("region", name="Program", exact=True)
    plan.locator("summary").first.click()
    shown = plan.locator("details").first.locator("li code")
    expect(shown).to_have_text([LONG_NAME, "helper.py", "requirements.txt", "train.py"])
    plan.locator("summary").last.click()
    left_out = plan.locator("details").last.locator("li")
    expect(left_out.filter(has_text="project/.git")).to_contain_text("the history of a repository")
    expect(left_out.filter(has_text="project/.venv")).to_contain_text("a Python environment")
    expect(left_out.filter(has_text="project/__pycache__")).to_contain_text("a cache")
    expect(left_out.filter(has_text=".env")).to_contain_text(["looks like a secret: environment file"])


def test_start_file_is_chosen_where_several_could_start(open_page: Open, tmp_path: Path) -> None:
    page = open_page("/new")
    page.locator("#program-files").set_input_files(files(tmp_path, {"a.py": SCRIPT, "b.py": SCRIPT}))
    expect(page.locator("#program-wrong")).to_have_text("Several files could start the program: choose the one to run.")
    page.get_by_label("Start file").select_option("b.py")
    expect(page.get_by_role("region", name="Program", exact=True)).to_contain_text("Runs python b.py")
    expect_taken(page)
    drop(page, *files(tmp_path, {"train.py": "if\n"}))
    expect(page.locator("#program-wrong")).to_contain_text("train.py:1: ")
    expect(page.locator("#reason")).to_have_text("The program cannot run yet.")


def test_yaml_is_what_the_form_writes_until_it_is_edited_by_hand(
    dashboard: DashboardServer, open_page: Open, tmp_path: Path
) -> None:
    dashboard.gpu_box()
    page = open_page("/new")
    drop(page, *files(tmp_path, {"train.py": SCRIPT}))
    config = page.get_by_role("textbox", name="Config", include_hidden=True)
    expect(config).to_have_value(re.compile("masterType: local-1\n  packageUris:\n    - staging://"))
    page.get_by_label(re.compile("^Machine")).select_option(label="4 CPUs, 15 GB, 2 × NVIDIA_TESLA_T4 (n1-standard-4)")
    expect(config).to_have_value(re.compile('acceleratorConfig:\n      type: NVIDIA_TESLA_T4\n      count: "2"\n'))
    expect_taken(page)
    written = config.input_value()
    type_config(page, written + "  region: here\n")
    expect_taken(page)
    choose(page, "Program")
    expect(page.locator("#drop")).to_be_hidden()
    expect(page.locator("#by-hand")).to_contain_text("The job uses that config, not this form.")
    page.get_by_role("button", name="Discard the config and use the form").click()
    expect(page.locator("#drop")).to_be_visible()
    expect(config).to_have_value(written)


def test_mistake_is_marked_at_its_line_and_gone_when_it_is_corrected(
    dashboard: DashboardServer, open_page: Open
) -> None:
    dashboard.agent()
    page = open_page("/new")
    expect(page.locator("#status")).to_have_text("Nothing to check yet.")
    type_config(page, GOOD.replace("scaleTier", "scaleTeir"))
    expect(page.locator("#reason")).to_have_text(re.compile("to be solved first"))
    expect(page.locator("#status")).to_have_text(re.compile(r"\d problems?"))
    problem = page.get_by_role("button", name=re.compile('Line 2 "scaleTeir" is not a field'))
    expect(problem).to_contain_text('Did you mean "scaleTier"?')
    expect(page.locator(".numbers .p-error")).to_have_text("2")
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
    page.get_by_label("Job directory").fill("/out/base")
    expect(page.get_by_label("Good to know")).to_contain_text("writes to the same directory as base")
    expect_taken(page)
    page.keyboard.press("Control+Enter")
    page.wait_for_url("**/projects/p/jobs/base_2")
    clone = dashboard.api.get("/v1/projects/p/jobs/base_2")
    assert clone["trainingInput"]["args"] == ["--lr", "0.2"]
    assert clone["labels"] == {"team": "vision"}


def test_typed_text_is_restored_after_the_session_ended(
    dashboard: DashboardServer, open_page: Open, tmp_path: Path
) -> None:
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
    expect(page.get_by_role("textbox", name="Config", include_hidden=True)).to_have_value("")
    drop(page, *files(tmp_path, {"train.py": SCRIPT}))
    expect_taken(page)
    page.reload()
    expect(page.locator("#restored")).to_contain_text("Choose the files of the program again.")
    page.errors.clear()  # type: ignore[attr-defined]  # the browser logs the 401


def test_config_comes_from_a_file_and_a_file_may_be_json(open_page: Open, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{\r\n\t"trainingInput": {"pythonModule": "trainer.task"}\r\n}\r\n')
    page = open_page("/new")
    choose(page, "YAML")
    page.locator("#config-file").set_input_files(file)
    expect_taken(page)
    page.keyboard.press("Control+z")
    expect(page.get_by_role("textbox", name="Config")).to_have_value("")


def test_what_looks_like_markup_is_text(open_page: Open, tmp_path: Path) -> None:
    page = open_page("/new")
    evil = '<script>document.title="gone"</script><img src=x onerror=alert(1)>'
    type_config(page, f"trainingInput:\n  {evil}: 1\nlabels: {{a: '{evil}'}}\n")
    expect(page.locator("#problems")).to_contain_text('<script>document.title="gone"</script>')
    expect(page).to_have_title("New job · Trainyard")
    choose(page, "Program")
    page.get_by_role("button", name="Discard the config and use the form").click()
    drop(page, *files(tmp_path, {"<img src=x onerror=alert(1)>.py": SCRIPT}))
    expect(page.get_by_role("region", name="Program", exact=True)).to_contain_text("<img src=x onerror=alert(1)>")
    page.get_by_label("Labels").fill(f"a={evil}")
    expect(page.locator("#labels-wrong")).to_contain_text("<script>")
    assert page.locator("#problems img, #labels-wrong img, #plan img").count() == 0


def test_viewer_cannot_submit(dashboard: DashboardServer, open_page: Open) -> None:
    dashboard.submit("base")
    page = open_page("/new", role="viewer")
    expect(page.get_by_role("heading", name="You can view jobs, but not submit them")).to_be_visible()
    expect(page.get_by_role("link", name="New job")).to_have_count(0)
    assert axe(page) == []
    page.goto("/projects/p/jobs/base/config")
    expect(page.get_by_role("link", name="Clone")).to_have_count(0)


def test_new_job_page_in_each_viewport(dashboard: DashboardServer, open_page: Open, tmp_path: Path) -> None:
    def check() -> None:
        for viewport in in_each_viewport(page):
            assert axe(page, viewport) == []
            assert is_within_window(page)

    dashboard.agent("gpu-host", cpus=32, memory_gb=128)
    dashboard.agent("small", cpus=2)
    page = open_page("/new?project=research")
    check()
    drop(page, *files(tmp_path, {"train.py": SCRIPT, "requirements.txt": "numpy\n", ".env": "TOKEN=a-secret\n"}))
    page.get_by_label(re.compile("^Arguments")).fill("--epochs 20 --learning-rate 0.003")
    expect_taken(page)
    page.locator("#plan summary").first.click()
    check()
    wrong = SHOWN.replace("workerCount: 3", "workerCount: three").replace('"2.11"', "2.10")
    type_config(page, wrong.replace("maxRunningTime", "maxRunTime"))
    expect(page.locator("#status")).to_have_text("3 problems")
    expect(page.locator(".numbers .p-error")).to_have_text(["6", "8", "10"])
    check()
