"""Archives of backups: a tar of all files, compressed by gzip, whose last member is the manifest.

It is made as it is read, block by block, so that its size on the disk of the server is nothing.
"""

import hashlib
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import trainyard_protocol
from trainyard_protocol.answers.stored.backups import FORMAT, MANIFEST, ArchivedFile, BackupManifest
from trainyard_server.capabilities.backups.collecting import Collected

_BLOCK = 1 << 20
_LEVEL = 1  # most of it is logs and checkpoints: more takes long and gains little
_GZIP = 31
_MODE = 0o600


def blocks(collected: Collected) -> Iterator[bytes]:
    """The archive. Raises OSError where a file has become shorter."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    files: list[ArchivedFile] = []
    for path in _files(collected.directory):
        for part in _member(path, path.relative_to(collected.directory).as_posix(), files):
            if packed := packer.compress(part):
                yield packed
    manifest = BackupManifest(
        format=FORMAT,
        version=trainyard_protocol.__version__,
        time=collected.time,
        database="postgresql" if collected.dump.kind == "postgresql" else "sqlite",
        schema_revision=collected.dump.schema,
        counts=collected.dump.counts,
        files=tuple(files),
    )
    content = manifest.model_dump_json().encode()
    yield packer.compress(_header(MANIFEST, len(content), collected.time.timestamp()) + _padded(content))
    yield packer.compress(bytes(2 * tarfile.BLOCKSIZE)) + packer.flush()


def _files(directory: Path) -> Iterator[Path]:
    """All files. An index comes before its segment, so that its lines are all there: the later name comes first."""
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name, reverse=True):
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
        else:
            yield Path(entry.path)


def _member(path: Path, name: str, files: list[ArchivedFile]) -> Iterator[bytes]:
    """A file as far as it goes now: others append to it."""
    digest = hashlib.sha256()
    with path.open("rb") as content:
        status = os.fstat(content.fileno())
        yield _header(name, status.st_size, status.st_mtime)
        left = status.st_size
        while left:
            block = content.read(min(left, _BLOCK))
            if not block:
                raise OSError(f"{name} has become shorter while it was copied; make the backup again")
            digest.update(block)
            left -= len(block)
            yield block
    yield bytes(-status.st_size % tarfile.BLOCKSIZE)
    files.append(ArchivedFile(path=name, size=status.st_size, sha256=digest.hexdigest()))


def _header(name: str, size: int, mtime: float) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, int(mtime), _MODE
    return member.tobuf(tarfile.PAX_FORMAT)


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % tarfile.BLOCKSIZE)
