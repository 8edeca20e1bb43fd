"""The built site: no warning, no network, opened from disk, and its search answers what newcomers ask."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from beds.site.pages import PAGES, ROOT
from browser.quiet_network import QuietNetwork

QUESTIONS = {
    "resume from checkpoint": "tutorials/your-own-trainer",
    "add a machine": "tutorials/second-machine",
    "kubernetes agent": "how-to/kubernetes",
    "slurm partition": "how-to/slurm",
    "bash: line 1: jobs: submit: no such job": "how-to/automation",
    "grid search": "how-to/tuning",
    "hugging face token": "how-to/data",
    "mlflow": "how-to/metrics",
    "upgrade": "how-to/server",
    "why job waits": "how-to/sharing",
    "requirements.txt": "explanation/what-a-program-finds",
    "backup restore": "how-to/operate",
    "gcloud ai-platform": "coming-from/google",
    "machine lost": "explanation/reliability",
}
"""What a newcomer types into the search, and the page that is to be among the first three."""


@pytest.fixture(scope="module")
def site(network: QuietNetwork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built where no network can be reached."""
    directory = tmp_path_factory.mktemp("site")
    program = network.program(str(Path(sys.executable).with_name("mkdocs")), directory)
    built = subprocess.run(
        [program, "build", "--strict", "--site-dir", directory / "built"],
        cwd=ROOT,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert not re.findall(r"^(?:WARNING|ERROR).*", built.stderr, re.MULTILINE)
    return directory / "built"


@pytest.fixture
def page(chromium: Browser, site: Path) -> Iterator[Page]:
    """The site's home, opened from disk. It fails the test by asking for anything that is no file of it."""
    asked = []
    window = chromium.new_page()
    window.on("request", lambda request: asked.append(request.url))
    window.on("pageerror", lambda error: asked.append(str(error)))
    window.goto((site / "index.html").as_uri())
    yield window
    window.close()
    assert [url for url in asked if not url.startswith(site.as_uri())] == []


def test_every_page_is_built(site: Path) -> None:
    assert [path for path in PAGES if not (site / path.relative_to(ROOT / "docs")).with_suffix(".html").exists()] == []


def test_links_of_the_home_open_pages_from_disk(page: Page) -> None:
    page.get_by_role("link", name="Your first job").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("first job")


def test_search_has_the_right_page_among_the_first_three(page: Page) -> None:
    wrong = {}
    for question, right in QUESTIONS.items():
        page.reload()
        page.keyboard.press("/")
        search = page.locator(".md-search__input")
        search.fill(question)
        search.dispatch_event("keyup")  # the theme's: one query, of the whole question
        expect(page.locator(".md-search-result__item").first).to_be_visible()
        found = page.locator(".md-search-result__item").evaluate_all(
            "items => items.map(item => item.querySelector('a').href)"
        )
        if not any(f"/{right}.html" in url for url in found[:3]):
            wrong[question] = found[:3]
    assert not wrong
