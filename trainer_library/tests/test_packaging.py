from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Launcher

LIBRARY = Path(__file__).resolve().parents[1]


def test_wheel_has_every_module_and_trains_the_model_of_the_readme(launcher: Launcher, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (LIBRARY / "README.md").read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 40
    build = "import sys; from hatchling import build; build.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=LIBRARY, check=True, capture_output=True)
    (built,) = tmp_path.glob("trainyard_trainer-*.whl")
    with zipfile.ZipFile(built) as wheel:
        packed = set(wheel.namelist())
        wheel.extractall(tmp_path / "installed")
    modules = {str(path.relative_to(LIBRARY)) for path in (LIBRARY / "trainyard_trainer").rglob("*.py")}
    assert modules | {"trainyard_trainer/py.typed"} <= packed

    (tmp_path / "installed/my_model.py").write_text(code)
    flags = ("--task", "my_model", "--epochs", "1", "--job-dir", str(tmp_path / "job"))
    trainer = launcher.alone(*flags, PYTHONPATH=str(tmp_path / "installed"))
    assert trainer.wait() == 0, trainer.stderr
    assert trainer.events("evaluation")[-1]["held_out_error"] < trainer.events("progress")[0]["error"]
