"""The installer as one file, which any Python starts: `python3 installer.pyz`."""

import zipfile
from pathlib import Path

from trainyard_agent import installer

_NAME = "trainyard_installer"
_START = f"import sys\nfrom {_NAME}.__main__ import main\nmain(sys.argv[1])\n"


def write(path: Path) -> None:
    """Write it, for everybody to read."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", _START)
        for module in sorted(Path(installer.__path__[0]).glob("*.py")):
            archive.writestr(f"{_NAME}/{module.name}", module.read_bytes())
    path.chmod(0o644)
