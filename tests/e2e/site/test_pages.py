"""The commands of the site's pages, typed in their order into a shell against a local service of their own."""

from pathlib import Path

import pytest

from beds.site import pages

RUN = [page for page in pages.PAGES if any(block.runs for block in pages.blocks(page))]
FIRST = ("first-job", "your-own-trainer", "team", "automation", "containers", "data", "follow-jobs", "inside-a-job")
"""The pages whose commands others build on; `make test-all` types those of the rest, too."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.stem, marks=() if page.stem in FIRST else pytest.mark.long) for page in RUN]
)
def test_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    done = pages.run(page, tmp_path)
    assert done.returncode == 0, done.stdout
