"""Rooms: a folder has at most twenty modules, so that one look shows them."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 20
FOLDERS = (
    *("benchmarks", "cli", "programs", "protocol", "scripts", "sdk", "server"),
    *("storage", "tests", "trainer_library", "trainer_template", "worker_agent"),
)


def test_no_folder_has_more_than_twenty_modules() -> None:
    modules = (
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".js") and path.name != "__init__.py"
    )
    counts = Counter(str(path.parent.relative_to(ROOT)) for path in modules)
    assert {folder: count for folder, count in counts.items() if count > MOST} == {}
