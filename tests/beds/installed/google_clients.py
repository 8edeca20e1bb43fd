"""Directories with clients of AI Platform and Vertex AI, for PYTHONPATH: Airflow, tensorflow_cloud, TFX and
google-cloud-aiplatform. Made once, then cached.

Their dependencies are pinned in `client_pins/`, all of them, since today's newest releases do not fit these clients.
`make test-all` runs this file first, so that their installation is not beside tests.
"""

import hashlib
import subprocess
import sys
import time
from pathlib import Path

from beds.installed.caches import made_once

CLIENTS = ("airflow", "tensorflow_cloud", "tfx", "vertex")
"""TFX's has only what is not in tensorflow_cloud's, and goes before it."""

_PINS = Path(__file__).parent / "client_pins"
_TIMEOUT_S = 1200
_TRIES = 3


class NoClients(Exception):
    """The message says what is missing."""


def packages(client: str) -> Path:
    """The directory with a client and what it imports. Raises NoClients where it cannot be made."""
    pins = _PINS / f"{client}.txt"
    content = pins.read_bytes() + f"{sys.version_info[:2]}".encode()

    def make(scratch: Path) -> Path:
        _install(pins, scratch)
        return scratch

    return made_once(f"client-{client}", hashlib.sha256(content).hexdigest()[:16], make)


def _install(pins: Path, target: Path) -> None:
    """Install without resolving: the list is complete."""
    flags = ["--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", *flags, "--requirement", str(pins)]
    for again in range(_TRIES):
        time.sleep(5 * again)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise NoClients(f"{pins.stem} was not installed within {_TIMEOUT_S} s.") from error
        if done.returncode == 0:
            return
    reason = (done.stderr or done.stdout).strip().splitlines()[-1:]
    raise NoClients(f"{pins.stem} cannot be installed: {' '.join(reason)}")


if __name__ == "__main__":
    for name in CLIENTS:
        try:
            packages(name)
        except NoClients as error:  # the tests that need it fail in CI, and are skipped elsewhere
            print(error)
