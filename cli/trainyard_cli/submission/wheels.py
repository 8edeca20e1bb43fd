"""Wheels of pure Python: a zip of the files, of the metadata and of a list of digests (PEP 427).

Nothing is built, here or on the agent, which unpacks them. The same content gives the same file.
"""

import base64
import hashlib
import re
import stat
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard_protocol.errors import InvalidArgument

VERSION = "0.0.0"

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip
_WHEEL = "Wheel-Version: 1.0\nGenerator: trainyard\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file of a wheel: its name there, and its content or the file that has it."""

    name: str
    content: bytes | Path


def write(directory: Path, name: str, entries: Iterable[WheelFile], requirements: Sequence[str]) -> Path:
    """Write the wheel of a distribution. `name`: that of its module, which may have any letters. Raises InvalidArgument
    for a file that cannot be read."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "package"
    info = f"{name}-{VERSION}.dist-info"
    path = directory / f"{name}-{VERSION}-py3-none-any.whl"
    record: list[str] = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(name: str, content: bytes, mode: int = 0o644) -> None:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            quoted = '"' + name.replace('"', '""') + '"'
            record.append(f"{quoted},sha256={digest},{len(content)}\n")

        for entry in entries:
            if isinstance(entry.content, bytes):
                add(entry.name, entry.content)
                continue
            try:
                content, mode = entry.content.read_bytes(), entry.content.stat().st_mode
            except OSError as error:
                raise InvalidArgument(f"{entry.content} cannot be packaged: {error.strerror}.") from error
            add(entry.name, content, 0o755 if mode & 0o100 else 0o644)
        add(f"{info}/METADATA", metadata(name, requirements).encode())
        add(f"{info}/WHEEL", _WHEEL.encode())
        add(f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode())
    return path


def metadata(name: str, requirements: Sequence[str]) -> str:
    """The METADATA of a distribution. Pure."""
    needs = [f"Requires-Dist: {requirement}" for requirement in requirements]
    return "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {VERSION}", *needs, ""])
