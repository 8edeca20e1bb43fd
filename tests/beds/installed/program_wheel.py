"""Packages as `jobs submit --package-path` makes them of a program: its files in a tar, a manifest and a launcher."""

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NAME = "trainyard_program-0.0.0-py3-none-any.whl"
_INFO = "trainyard_program-0.0.0.dist-info"


def build(
    directory: Path, files: Mapping[str, str | bytes], steps: Sequence[Mapping[str, Any]], launcher: str = ""
) -> Path:
    """Write one into a directory, which is made. `files`: contents by path. The digest is that of all files
    that are not Python."""
    directory.mkdir(parents=True, exist_ok=True)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), 0o644
            archive.addfile(info, io.BytesIO(data))
    deciding = sorted((path, str(content)) for path, content in files.items() if not path.endswith(".py"))
    digest = hashlib.sha256(json.dumps([deciding, list(steps)]).encode()).hexdigest()
    manifest = {"version": 1, "module": "train", "install": {"digest": digest, "steps": list(steps)}}
    with zipfile.ZipFile(directory / NAME, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("trainyard_program/__init__.py", "")
        wheel.writestr("trainyard_program/__main__.py", launcher)
        wheel.writestr("trainyard_program/program.json", json.dumps(manifest))
        wheel.writestr("trainyard_program/files.tar", tar.getvalue())
        wheel.writestr(f"{_INFO}/METADATA", "Metadata-Version: 2.1\nName: trainyard-program\nVersion: 0.0.0\n")
        wheel.writestr(f"{_INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{_INFO}/RECORD", "")
    return directory / NAME
