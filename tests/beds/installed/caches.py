"""The directory of what is big and rarely changes: made once, kept outside the checkout."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def cache_directory() -> Path:
    """Below $XDG_CACHE_HOME, else ~/.cache. It may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard"


def made_once(kind: str, version: str, make: Callable[[Path], Path]) -> Path:
    """The directory KIND-VERSION of the cache. `make` makes it below a scratch directory, and returns where; it is
    called in one process at a time, and what it raises leaves nothing behind."""
    cache = cache_directory()
    directory = cache / f"{kind}-{version}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            scratch = cache / f"{kind}.making"
            shutil.rmtree(scratch, ignore_errors=True)  # of one that was killed
            try:
                make(scratch).rename(directory)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return directory
