"""Programs of others that rows compare with: Ray and uv out of a package index, and a Docker engine of Debian's."""

import fcntl
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.rows import LeftOut

if TYPE_CHECKING:
    from beds import engines

RAY = "ray[default]==2.60.0"
UV = "uv==0.13.9"
_TESTS = Path(__file__).parents[2] / "tests"


def installed(requirement: str) -> Path:
    """The directory of the programs of a package, in an environment that is made once. Raises LeftOut."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard"
    cache.mkdir(parents=True, exist_ok=True)
    directory = cache / f"benchmark-{requirement.translate(str.maketrans('[]=', '---'))}"
    with (cache / "benchmark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            print(f"installing {requirement} into {directory}, once", file=sys.stderr)
            venv.create(directory, clear=True, with_pip=True)
            pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement]
            done = subprocess.run(pip, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
                raise LeftOut(f"{requirement} cannot be installed: {reason}.")
            (directory / "complete").touch()
    return directory / "bin"


@contextmanager
def engine() -> Iterator["engines.Engine"]:
    """This machine's Docker engine, else one of its own, with the tests' base image. Raises LeftOut."""
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))  # the tests start engines, and make the image
    from beds import engines

    try:
        with engines.found() as found:
            found.provide_base_image()
            yield found
    except engines.NoEngine as missing:
        raise LeftOut(f"There is no Docker engine: {missing}.") from missing
