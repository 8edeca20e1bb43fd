"""Disk usage of directories."""

import os
from pathlib import Path


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
