"""The repository without the folders of capabilities: the kernel's fast tests pass without any, and all tests that are
left can be collected without each."""

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSE = runpy.run_path(str(ROOT / "scripts" / "house.py"))
PACKAGES = ("server", "cli", "protocol", "worker_agent", "storage", "programs", "sdk")
FAST = ("tests/unit", "tests/contract", "tests/property", "tests/integration/api", "tests/capabilities")
OF_THE_WHOLE = (
    *(f"tests/unit/test_{name}.py" for name in ("docs", "site", "skill", "house", "words", "benchmark_rows")),
    "tests/unit/test_collection.py",
    "tests/unit/cli/test_loaded_models.py",
    "tests/integration/api/access",
)
"""Tests that hold together what there is: pages, names, the table of all routes with every role."""

pytestmark = pytest.mark.long


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """The files that git tracks, as they are here."""
    copied = tmp_path / "copy"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (copied / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copied / name)
    yield copied
    shutil.rmtree(copied)


def passes(copy: Path, options: Iterable[str]) -> tuple[bool, str]:
    """Whether pytest passes in the copy, with its own packages; and the end of what it printed."""
    paths = os.pathsep.join(str(copy / package) for package in PACKAGES)
    others = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", "-m", "not slow", *options]
    done = subprocess.run(
        command, cwd=copy, env=others | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    return done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


@pytest.mark.timeout(2400)
def test_kernel_passes_its_fast_tests_without_any_capability(copy: Path) -> None:
    for name in HOUSE["capabilities"]():
        HOUSE["remove"](copy, name)
    left_out = [f"--ignore={path}" for path in OF_THE_WHOLE]
    done, printed = passes(copy, ["-n", "2", "--dist", "loadgroup", *left_out, *FAST])
    assert done, printed


@pytest.mark.parametrize("name", HOUSE["capabilities"]())
def test_rest_can_be_collected_without_it(name: str, copy: Path) -> None:
    HOUSE["remove"](copy, name)
    done, printed = passes(copy, ["--collect-only", "-n", "0", *FAST])
    assert done, printed
