"""Files of a program in a tar that somebody else has written, such as a page in a browser, and their unpacking.

Only regular files and directories are accepted, by plain names. Every header is checked, and a tar has to end.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from trainyard_protocol.errors import InvalidArgument, TooLarge, shown
from trainyard_protocol.fields import sized

MAX_FILES = 10_000

_BLOCK = tarfile.BLOCKSIZE
_COPIED = 1 << 20
_LONGEST_NAME, _LONGEST_PART = 1024, 255
_DEEPEST = 40
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
}


def unpack(tar: Path, directory: Path, *, most_bytes: int, most_files: int = MAX_FILES) -> None:
    """Unpack a tar into an empty directory. Raises InvalidArgument for anything but a tar of plain files, TooLarge."""
    total = count = 0
    with tar.open("rb") as source:
        for member in _members(source):
            count += 1
            total += member.size
            if count > most_files:
                raise TooLarge(
                    f"A program that a browser sends has at most {most_files:,} files and directories. Leave out data "
                    "and results, or submit it with the command line."
                )
            if total > most_bytes:
                raise TooLarge(f"The files of the program are larger than the limit of {sized(most_bytes)}.")
            _write(source, member, directory)


def _members(source: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """The headers of files and directories. The content of a file is read before the next header."""
    long_name = ""
    while True:
        block = source.read(_BLOCK)
        if block == bytes(_BLOCK):
            return
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")  # a long name may be cut
        except (tarfile.HeaderError, ValueError) as error:
            raise InvalidArgument(f"The body of the request is not a whole tar: {error}.") from error
        if member.size < 0:
            raise InvalidArgument("The body of the request is not a whole tar: a file has a negative size.")
        if member.type == tarfile.GNUTYPE_LONGNAME:
            long_name = _long_name(source, member)
            continue
        member.name, long_name = _checked(long_name or member.name), ""
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
            kind = _KINDS.get(member.type, "neither a file nor a directory")
            raise InvalidArgument(f"{shown(member.name)} is {kind}. A program may have only files and directories.")
        if member.isdir():
            member.size = 0
        yield member


def _long_name(source: BinaryIO, member: tarfile.TarInfo) -> str:
    if member.size > _LONGEST_NAME + 1:
        raise InvalidArgument(f"A file has a path of more than {_LONGEST_NAME:,} bytes.")
    data = source.read(-(-member.size // _BLOCK) * _BLOCK)[: member.size]
    return data.removesuffix(b"\0").decode(errors="surrogateescape")


def _checked(name: str) -> str:
    """The name of a member without the slash of a directory. Raises InvalidArgument for one that could lead out of the
    directory, or that no shell could write."""
    name = name.removesuffix("/")
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise InvalidArgument(f"{shown(name) or 'An empty name'} is not the relative path of a file.")
    if len(parts) > _DEEPEST or any(len(part.encode()) > _LONGEST_PART for part in parts):
        raise InvalidArgument(
            f"{shown(name)}: a path has at most {_DEEPEST} parts, of {_LONGEST_PART} bytes each at most."
        )
    return name


def _write(source: BinaryIO, member: tarfile.TarInfo, directory: Path) -> None:
    path = directory / member.name
    try:
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as target:
            left = member.size
            while left:
                data = source.read(min(left, _COPIED))
                if not data:
                    raise InvalidArgument(f"The body of the request ends inside of {shown(member.name)}.")
                target.write(data)
                left -= len(data)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidArgument(f"{shown(member.name)} is sent twice, or both as a file and as a directory.") from error
    path.chmod(0o755 if member.mode & 0o100 else 0o644)
    source.read(-member.size % _BLOCK)
