from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Launcher

TEMPLATE = Path(__file__).resolve().parents[1]


def test_sdist_of_a_copy_has_every_module_and_trains_the_model_of_the_readme(
    launcher: Launcher, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(TEMPLATE / "pyproject.toml", copy)
    shutil.copytree(TEMPLATE / "trainer", copy / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    (code,) = re.findall(r"```python\n(.*?)```", (TEMPLATE / "README.md").read_text(), re.DOTALL)
    (copy / "trainer/my_model.py").write_text(code)
    assert len(code.splitlines()) <= 40
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=copy, check=True, capture_output=True)
    (built,) = tmp_path.glob("trainer-*.tar.gz")
    with tarfile.open(built) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
        sdist.extractall(tmp_path, filter="data")
    modules = {str(path.relative_to(TEMPLATE)) for path in (TEMPLATE / "trainer").rglob("*.py")}
    assert modules | {"pyproject.toml", "trainer/my_model.py"} <= packed

    (unpacked,) = tmp_path.glob("trainer-*/")
    flags = ("--task", "trainer.my_model", "--epochs", "1", "--job-dir", str(tmp_path / "job"))
    trainer = launcher.alone(*flags, PYTHONPATH=str(unpacked))
    assert trainer.wait() == 0, trainer.stderr
    assert trainer.events("evaluation")[-1]["held_out_error"] < trainer.events("progress")[0]["error"]
