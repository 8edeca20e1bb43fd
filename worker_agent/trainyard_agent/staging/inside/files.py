"""Files beside the packages of a run: a .pth file, which each Python of the environment reads at its start, and the
modules that it starts. They use only the standard library."""

from pathlib import Path

from trainyard_agent.staging.inside import hints, lost_files, startup

PTH = "trainyard-startup.pth"

_MODULES = {"_trainyard_startup": startup, "_trainyard_hints": hints, "_trainyard_lost_files": lost_files}


def files() -> dict[str, str]:
    """The content of each by its name in the directory of packages."""
    sources = {
        f"{name}.py": Path(str(module.__file__)).read_text(encoding="utf-8") for name, module in _MODULES.items()
    }
    return {PTH: "import os; 'CLOUD_ML_JOB' in os.environ and __import__('_trainyard_startup').begin()\n", **sources}
