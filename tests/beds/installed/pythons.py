"""The interpreters of this machine that Trainyard promises to run on."""

import subprocess
from pathlib import Path
from shutil import which

from beds.installed.missing import skip_without

VERSIONS = ("3.11", "3.12", "3.13")

_VERSION = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
_PLACES = (".pyenv/versions/{}.*/bin/python", ".local/share/uv/python/cpython-{}.*/bin/python3")


def needed_python(version: str) -> Path:
    """An interpreter of that version that can make virtual environments: on PATH, of pyenv or of uv."""
    on_path = which(f"python{version}")
    candidates = [Path(on_path)] if on_path else []
    candidates += [path for place in _PLACES for path in sorted(Path.home().glob(place.format(version)))]
    found = next((path for path in candidates if _version_of(path) == version), None)
    return found or skip_without(f"Python {version} is not installed: on PATH, by pyenv or by uv")


def _version_of(path: Path) -> str:
    """ "" of a shim of pyenv that leads nowhere."""
    return subprocess.run([path, "-c", _VERSION], capture_output=True, text=True, check=False).stdout.strip()
