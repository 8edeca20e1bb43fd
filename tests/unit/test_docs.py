"""The documentation against the code: generated pages, tables, links, and the paths that pages name."""

import re
import runpy
from pathlib import Path

import pytest
import yaml

from trainyard_protocol.errors import TrainyardError

ROOT = Path(__file__).parents[2]


def test_generated_pages_are_what_the_code_says() -> None:
    made: dict[Path, str] = runpy.run_path(str(ROOT / "scripts" / "docs.py"))["pages"]()
    assert len(made) >= 7
    assert [page.name for page, text in made.items() if page.read_text(encoding="utf-8") != text] == [], "make docs"


def test_every_error_stands_in_the_tree_at_the_top_of_its_file() -> None:
    import trainyard_protocol.errors as module

    drawn = set(re.findall(r"[├└]── (\w+)", module.__doc__ or ""))
    assert drawn == {
        name
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, TrainyardError) and kind is not TrainyardError
    }


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")), ids=str)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_sections_that_messages_name_exist() -> None:
    """A message names a section as (docs/how-to/operate.md, A damaged database)."""
    packages = ("protocol", "sdk", "cli", "server", "storage", "programs", "worker_agent")
    sources = [path.read_text(encoding="utf-8") for name in packages for path in (ROOT / name).rglob("*.py")]
    named = {found for text in sources for found in re.findall(r"\((docs/[\w/-]+\.md), ([^)]+)\)", text)}
    assert len(named) >= 2
    headings = {
        (page, heading)
        for page, _ in named
        for heading in re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named - headings == set()


def test_recorded_job_fits_on_one_screen_which_the_page_shows() -> None:
    pytest.importorskip("pyte", reason="pyte, of the dev extra, shows what a terminal would")
    recording = runpy.run_path(str(ROOT / "scripts" / "record.py"))
    cast = recording["DIGITS"].path.read_text(encoding="utf-8")
    *_, (_, rows) = recording["screens"](cast)
    assert rows[0].startswith("$ jobs submit training digits")
    assert any("Job [digits] succeeded" in row for row in rows)
    assert recording["section"](cast) in recording["PAGE"].read_text(encoding="utf-8"), "run: make recording"


def test_architecture_has_a_row_for_each_folder_of_a_package() -> None:
    roots = [*(ROOT / name for name in ("protocol", "sdk", "cli", "server", "storage", "programs", "worker_agent"))]
    folders = {path.parent for root in roots for path in root.rglob("__init__.py")}
    packages = {str(folder.relative_to(ROOT)) for folder in folders if len(folder.relative_to(ROOT).parts) <= 3}
    rows = re.findall(r"^\| `([a-z_/]+/[a-z0-9_/]+)` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(packages)


HOW_TOS = sorted((ROOT / "docs" / "contributing").glob("*.md"))


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *HOW_TOS], ids=lambda page: page.name)
def test_how_to_names_files_that_exist(page: Path) -> None:
    for name in re.findall(r"`([\w./-]+(?:\.(?:py|html|md|css|toml)|/))`", page.read_text(encoding="utf-8")):
        if not any(example in name for example in EXAMPLES):
            assert _exists(name.rstrip("/")), f"{page.name} names {name}, which does not exist"


def _exists(name: str) -> bool:
    """A path from the top, or the end of one: `control/launch.py`."""
    folders = ("cli", "protocol", "sdk", "server", "storage", "programs", "tests", "worker_agent")
    return (ROOT / name).exists() or any(next((ROOT / top).rglob(name), None) for top in folders)


EXAMPLES = ("bookmarks", "NAME", "NNNN")
"""Files that a how-to lets its reader make."""


def test_example_configs_are_valid() -> None:
    from trainyard_protocol.job.config.validation import check
    from trainyard_protocol.job.machines import default_catalog
    from trainyard_protocol.job.parsing import parse_training_input

    configs = [p for p in (ROOT / "configs").glob("*.yaml") if "trainingInput" in yaml.safe_load(p.read_text())]
    configs.append(ROOT / "trainer_template" / "config.yaml")
    assert len(configs) >= 2
    for path in configs:
        check(parse_training_input(yaml.safe_load(path.read_text())["trainingInput"]), default_catalog())


PROMISES = "\n".join((ROOT / "docs" / "explanation" / name).read_text() for name in ("reliability.md", "security.md"))
NAMED_TESTS = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PROMISES)


def test_promises_and_defences_name_tests() -> None:
    tables = re.findall(r"^\| (?:promise|attack) \|.* test \|\n\|[-|]+\n((?:\|.*\n)+)", PROMISES, re.MULTILINE)
    assert len(tables) >= 7
    rows = [row for table in tables for row in table.splitlines()]
    assert not [row for row in rows if not re.search(r"`tests/[\w/]+\.py::\w+` \|$", row)]


@pytest.mark.parametrize(("path", "name"), NAMED_TESTS)
def test_test_that_shows_a_promise_exists(path: str, name: str) -> None:
    assert re.search(rf"^ *(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
