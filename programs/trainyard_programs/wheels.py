"""Wheels of pure Python: a zip of the files, of the metadata and of a list of digests (PEP 427).

Nothing is built, here or on the agent, which unpacks them. The same content gives the same file.
"""

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

VERSION = "0.0.0"

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip
_MODE = 0o100644
_BLOCK = 1 << 20
_METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
_WHEEL = "Wheel-Version: 1.0\nGenerator: trainyard\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write(directory: Path, name: str, entries: Mapping[str, bytes | Path]) -> Path:
    """Write the wheel of a distribution without dependencies. `entries` are its files by their names in it, each as its
    content or the file that has it."""
    info = f"{name}-{VERSION}.dist-info"
    path = directory / f"{name}-{VERSION}-py3-none-any.whl"
    metadata = _METADATA.format(name=name, version=VERSION).encode()
    record: list[str] = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for entry, content in {**entries, f"{info}/METADATA": metadata, f"{info}/WHEEL": _WHEEL.encode()}.items():
            digest, size = _add(wheel, entry, content)
            encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            record.append(f"{entry},sha256={encoded},{size}\n")
        _add(wheel, f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode())
    return path


def _add(wheel: zipfile.ZipFile, name: str, content: bytes | Path) -> tuple[bytes, int]:
    """Add one file. Returns its SHA-256 and its size."""
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = _MODE << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    if isinstance(content, bytes):
        wheel.writestr(entry, content)
        return hashlib.sha256(content).digest(), len(content)
    entry.file_size = content.stat().st_size
    digest = hashlib.sha256()
    with content.open("rb") as source, wheel.open(entry, "w") as target:
        while block := source.read(_BLOCK):
            digest.update(block)
            target.write(block)
    return digest.digest(), entry.file_size
