import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parents[1]


def test_sdist_of_the_template_holds_every_module(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(TEMPLATE / "pyproject.toml", copy)
    shutil.copytree(TEMPLATE / "trainer", copy / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=copy, check=True, capture_output=True)
    (built,) = tmp_path.glob("trainer-*.tar.gz")
    with tarfile.open(built) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    modules = {str(path.relative_to(TEMPLATE)) for path in (TEMPLATE / "trainer").rglob("*.py")}
    assert modules | {"pyproject.toml"} <= packed
