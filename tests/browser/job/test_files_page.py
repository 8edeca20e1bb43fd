"""The files of a job: from directory to directory, and downloads."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from browser.browser_support import DashboardServer, Open, axe

ODD = '<script>alert(1)<\\script> & "quoted" 100%.txt'
FILES = "/projects/p/jobs/digits/files"


@pytest.fixture
def server_settings(tmp_path: Path) -> dict[str, Any]:
    return {"job_dir_roots": (str(tmp_path / "jobs"),), "one_user": True}


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    made = tmp_path / "jobs" / "digits"
    (made / "model" / "<img src=x onerror=alert(1)>").mkdir(parents=True)
    (made / "model" / "weights.safetensors").write_bytes(b"w" * 1_500_000)
    (made / "checkpoints").mkdir()
    (made / ODD).write_text("what is in it")
    (made / "out").symlink_to("/etc/passwd")
    return made


def test_files_are_listed_and_downloaded(dashboard: DashboardServer, open_page: Open, job_dir: Path) -> None:
    dashboard.submit("digits", jobDir=str(job_dir))
    page = open_page(FILES, role="viewer")
    expect(page.locator(".model")).to_contain_text(f"{job_dir}/model")
    expect(page.locator("[data-row]")).to_have_count(4)
    expect(page.get_by_role("link", name=ODD, exact=True)).to_be_visible()
    with page.expect_download() as downloading:
        page.get_by_role("link", name=f"Download {ODD}").click()
    assert Path(downloading.value.path()).read_text() == "what is in it"
    page.get_by_role("link", name="model/", exact=True).click()
    expect(page.locator("[data-row]")).to_have_count(2)
    expect(page.get_by_text("1.5 MB", exact=True)).to_be_visible()
    page.get_by_role("link", name="<img src=x onerror=alert(1)>/").click()
    expect(page.get_by_text("No files", exact=True)).to_be_visible()
    page.get_by_role("navigation", name="Directory").get_by_role("link", name="model").click()
    expect(page.locator("[data-row]")).to_have_count(2)


def test_file_that_a_running_job_writes_appears(dashboard: DashboardServer, open_page: Open, job_dir: Path) -> None:
    agent = dashboard.agent()
    dashboard.started(agent, "digits", jobDir=str(job_dir))
    page = open_page(f"{FILES}?path=checkpoints")
    expect(page.get_by_text("What the job writes to its job-dir appears here.")).to_be_visible()
    (job_dir / "checkpoints" / "step-100").touch()
    agent.exit(run=agent.run)
    expect(page.get_by_role("link", name="step-100", exact=True)).to_be_visible()


def test_file_has_a_preview_and_images_a_slider(dashboard: DashboardServer, open_page: Open, job_dir: Path) -> None:
    for step in (9, 10, 1000):
        (job_dir / "images" / "samples").mkdir(parents=True, exist_ok=True)
        (job_dir / "images" / "samples" / f"{step}.svg").write_text(
            '<svg xmlns="http://www.w3.org/2000/svg" width="30" height="20"><script>alert(1)</script></svg>'
        )
    (job_dir / "README.md").write_text("# Results\n\n<script>alert(1)</script> ![samples](images/samples/9.svg)")
    (job_dir / "metrics.csv").write_text("step,loss\n1,<b>0.5</b>\n")
    dashboard.submit("digits", jobDir=str(job_dir))
    page = open_page(FILES, role="viewer")
    slider = page.get_by_role("slider", name="Step of samples")
    expect(page.get_by_text("step 1,000")).to_be_visible()
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("step 10", exact=True)).to_be_visible()
    expect(slider).to_have_attribute("aria-valuetext", "step 10")
    image = page.get_by_role("img", name="samples at step 10", exact=True)
    expect(image).to_have_attribute("src", re.compile(r"images%2Fsamples%2F10\.svg$"))
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 30
    assert axe(page) == []
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download all as zip").click()
    assert downloading.value.suggested_filename == "digits.zip"
    page.get_by_role("link", name="README.md", exact=True).click()
    expect(page.get_by_role("heading", name="Results")).to_be_visible()
    expect(page.get_by_text("<script>alert(1)</script>")).to_be_visible()
    assert (
        page.get_by_role("img", name="samples").evaluate("image => image.decode().then(() => image.naturalWidth)") == 30
    )
    page.get_by_role("navigation", name="Directory").get_by_role("link").first.click()
    page.get_by_role("link", name="metrics.csv", exact=True).click()
    expect(page.get_by_role("cell", name="<b>0.5</b>")).to_be_visible()
