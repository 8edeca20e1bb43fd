"""Archives of backups: received from a server, verified by their manifest, unpacked."""

import hashlib
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO

from pydantic import ValidationError

from trainyard_protocol.answers.stored.backups import (
    FORMAT,
    MANIFEST,
    SERVER_PART,
    STATE_PART,
    STORAGE_PART,
    ArchivedFile,
    BackupManifest,
)
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument
from trainyard_protocol.net.private_files import create_private

_BLOCK = 1 << 20
_PARTS = (SERVER_PART, STORAGE_PART, STATE_PART)
_ADVICE = "Use another backup."


def receive(blocks: Iterable[bytes], file: Path, progress: Callable[[int], None]) -> BackupManifest:
    """Write an archive to a file, which appears once it is verified and on the disk. Only its owner may read it.
    Raises InvalidArgument for one that is damaged, OSError."""
    draft = file.with_name(f".{file.name}.part")
    draft.unlink(missing_ok=True)  # of a call that was killed
    try:
        with create_private(draft) as content:
            for block in blocks:
                content.write(block)
                progress(len(block))
            content.flush()
            os.fsync(content.fileno())
        manifest = unpack(draft)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    _sync(file.absolute().parent)
    return manifest


def unpack(archive: Path, into: Path | None = None, progress: Callable[[int], None] = lambda _: None) -> BackupManifest:
    """Read an archive to its end, compare each file with the manifest, and write the files below `into` if it is given.

    Raises InvalidArgument for an archive that is cut off, damaged, of a newer release, or none; OSError.
    """
    with archive.open("rb") as content:
        try:
            with tarfile.open(fileobj=content, mode="r|gz") as tar:
                files, manifest = _read(archive, tar, into, progress)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise InvalidArgument(f"{archive} is cut off, damaged, or not a backup: {error}. {_ADVICE}") from error
        except OSError as error:
            if error.errno is None:  # of gzip
                raise InvalidArgument(f"{archive} is damaged, or not a backup: {error}. {_ADVICE}") from error
            raise
    expected = {file.path: file for file in manifest.files}
    wrong = sorted(path for path in expected.keys() | files.keys() if expected.get(path) != files.get(path))
    if wrong:
        raise InvalidArgument(f"{archive} is damaged: {wrong[0]} is not what its manifest says. {_ADVICE}")
    return manifest


def _read(
    archive: Path, tar: tarfile.TarFile, into: Path | None, progress: Callable[[int], None]
) -> tuple[dict[str, ArchivedFile], BackupManifest]:
    files: dict[str, ArchivedFile] = {}
    text: bytes | None = None
    for member in tar:
        content = tar.extractfile(member)
        if text is not None or content is None or not member.isreg():
            raise InvalidArgument(f"{archive} is not a backup: {member.name!r} does not belong there. {_ADVICE}")
        if member.name == MANIFEST:
            text = content.read()
            continue
        files[member.name] = _copied(member, content, into and into / _path(archive, member.name))
        progress(member.size)
    if text is None:
        raise InvalidArgument(f"{archive} is cut off: it has no manifest at its end. {_ADVICE}")
    try:
        manifest = BackupManifest.model_validate_json(text)
    except ValidationError as error:
        raise InvalidArgument(f"The manifest of {archive} is not that of a backup. {_ADVICE}") from error
    if manifest.format > FORMAT:
        raise FailedPrecondition(
            f"{archive} was made by the newer release {manifest.version} and cannot be read by this one. Install that "
            "release here."
        )
    return files, manifest


def _path(archive: Path, name: str) -> PurePosixPath:
    """The path of a member below a directory. Raises InvalidArgument for one that leads elsewhere."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or path.parts[0] not in _PARTS:
        raise InvalidArgument(f"{archive} is not a backup: it has a file {name!r}. {_ADVICE}")
    return path


def _copied(member: tarfile.TarInfo, content: IO[bytes], target: Path | None) -> ArchivedFile:
    digest = hashlib.sha256()
    if target is None:
        for block in _blocks(content):
            digest.update(block)
    else:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with create_private(target) as file:
            for block in _blocks(content):
                digest.update(block)
                file.write(block)
        os.utime(target, (member.mtime, member.mtime))  # the age of packages is theirs
    return ArchivedFile(path=member.name, size=member.size, sha256=digest.hexdigest())


def _blocks(content: IO[bytes]) -> Iterator[bytes]:
    while block := content.read(_BLOCK):
        yield block


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
