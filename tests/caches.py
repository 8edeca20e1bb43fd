"""The directory of what is big and rarely changes: made once, kept outside the checkout."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """Below $XDG_CACHE_HOME, else ~/.cache. It may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard"
