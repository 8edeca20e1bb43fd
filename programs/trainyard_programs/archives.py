"""Built packages on disk, as pip and uv install them."""

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from trainyard_protocol.errors import InvalidArgument

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".zip", ".whl")

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Archive:
    """Package file on disk. `sha256` is hex, `size` bytes."""

    path: Path
    sha256: str
    size: int


def check_archive(path: Path) -> Archive:
    """Read and check a built package. Raises InvalidArgument unless pip could install it."""
    if not path.name.endswith(ARCHIVE_SUFFIXES):
        allowed = ", ".join(ARCHIVE_SUFFIXES)
        raise InvalidArgument(f"The package {path} cannot be installed; a package ends in one of {allowed}.")
    try:
        with path.open("rb") as file:
            is_gzip = path.suffix in (".gz", ".tgz") and file.peek(2).startswith(_GZIP)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if not is_gzip and not zipfile.is_zipfile(path):
            raise InvalidArgument(
                f"The package {path} is not an archive, despite its name. `python -m build` builds one from a project."
            )
        return Archive(path, digest, path.stat().st_size)
    except OSError as error:
        raise InvalidArgument(f"The package {path} cannot be read: {error.strerror}.") from error
