"""Disks of this machine: their usage, and failures of theirs in words."""

import errno
import os
import shutil
from pathlib import Path

from trainyard_protocol.fields import sized

_MACHINES = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO))


def usage(path: Path) -> int:
    """The bytes that the files below a directory occupy. Links are not followed; what vanishes meanwhile, or may not be
    read, counts nothing."""
    total, directories = 0, [str(path)]
    while directories:
        try:
            with os.scandir(directories.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
    return total


def is_machines(error: OSError) -> bool:
    """Whether the disk is at fault (full, read-only, failing), whoever's file it is."""
    return error.errno in _MACHINES


def in_words(error: OSError, path: Path | None = None) -> str:
    """`No space left on device (/data/jobs, 0 B are free)`: the error, with what is free where the disk is at fault."""
    named = path if path is not None else error.filename
    reason = error.strerror or str(error)
    if named is None or isinstance(named, int):
        return reason
    place = os.fsdecode(named)
    if not is_machines(error):
        return f"{reason} ({place})"
    try:
        return f"{reason} ({place}, {sized(shutil.disk_usage(nearest(Path(place))).free)} are free)"
    except OSError:
        return f"{reason} ({place})"


def shortage(directory: str, reserve: int) -> str:
    """The lack of room of a container engine's directory, as far as this machine has it; "" if there is enough."""
    if not directory:
        return ""
    try:
        room = shutil.disk_usage(directory)
    except OSError:  # the engine sees other paths
        return ""
    least = reserve_of(reserve, room.total)
    return "" if room.free >= least else f"the container engine's {directory} has less than {sized(least)} left"


def reserve_of(reserve: int, total: int) -> int:
    """The bytes that a disk of that size keeps free: of a small one a tenth."""
    return min(reserve, total // 10)


def nearest(path: Path) -> Path:
    """The path itself, or the nearest of its parents that exists."""
    return next((parent for parent in (path, *path.parents) if parent.exists()), path)
