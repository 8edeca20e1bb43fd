"""The installer as one file, which any Python starts: `python3 installer.pyz`."""

import io
import marshal
import zipfile
from functools import cache
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

from trainyard_agent import installer

_NAME = "trainyard_installer"
_START = f"import sys\nfrom {_NAME}.__main__ import main\nmain(sys.argv[1])\n"
_UNCHECKED = (1).to_bytes(4, "little")  # bytecode that is not compared with its source (PEP 552)


def write(path: Path) -> None:
    """Write it, for everybody to read."""
    path.write_bytes(_content())
    path.chmod(0o644)


@cache
def _content() -> bytes:
    """The archive. Other Pythons than the agent's leave its bytecode, and compile the modules at each start."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", _START)
        for module in sorted(Path(installer.__path__[0]).glob("*.py")):
            source, name = module.read_bytes(), f"{_NAME}/{module.name}"
            code = marshal.dumps(compile(source, name, "exec", dont_inherit=True))
            archive.writestr(name, source)
            archive.writestr(f"{name}c", MAGIC_NUMBER + _UNCHECKED + source_hash(source) + code)
    return content.getvalue()
