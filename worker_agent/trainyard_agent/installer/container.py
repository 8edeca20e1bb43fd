"""Makes a run's own Python environment, inside a container of its runtime image, and installs into it.

PLAN is JSON:

    environment   the directory to create
    module        a package (directory) for programs whose environment has none of that name; optional
    startup       names and contents of a .pth file, which each Python of the environment reads at its start, and of
                  the modules that it loads
    files         `path` and `sha256` of packages to check first, and the `url` of those that are to be downloaded;
                  optional
    authorities   file with the certificates that downloads trust; optional: those of the image
    installation  the plan of `installation`, without its paths in the image

Exits with 0; NO_ENVIRONMENT if the image cannot create one; NOT_FETCHED if a package is not there as it should be; AWAY
if the server or an index has not answered for as long as it may; else 1. The output is that of `installation`.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import shutil
import site
import subprocess
import sys
import sysconfig
import time
from importlib.util import find_spec
from typing import Any

from . import installation
from .environment import BASE_FILE, base_lines
from .output import AWAY, NoAnswer
from .patience import PATIENCE_S, Patience

NO_ENVIRONMENT, NOT_FETCHED = 3, 75

_TIMEOUT_S = 60.0
_REFUSING = {*range(400, 500), 501, 505} - {408, 425, 429}  # statuses; others pass


def main(plan_file: str) -> None:
    plan = json.loads(pathlib.Path(plan_file).read_text())
    environment = pathlib.Path(plan["environment"])
    for file in plan.get("files", ()):
        try:
            fetch(file, plan.get("authorities"), plan["installation"].get("patience_s", PATIENCE_S))
        except (OSError, NoAnswer) as error:
            print(f"{pathlib.Path(file['path']).name} could not be fetched: {error}.")
            sys.exit(AWAY if isinstance(error, NoAnswer) else NOT_FETCHED)
    make = [sys.executable, "-m", "venv", "--without-pip", "--clear", str(environment)]
    if subprocess.run(make, check=False).returncode:
        sys.exit(NO_ENVIRONMENT)
    (packages,) = (environment / "lib").glob("python*/site-packages")
    base = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    module_lines = []
    if plan.get("module"):
        module = pathlib.Path(plan["module"])
        shutil.copytree(module, environment / "module" / module.name)
        module_lines.append(f"{environment}/module\n")
    # The module is behind the base: an installed package of that name comes first.
    (packages / BASE_FILE).write_text("".join([base_lines(dict.fromkeys(base)), *module_lines]))

    for name, content in plan["startup"].items():
        (packages / name).write_text(content)

    sys.exit(installation.main({**plan["installation"], **paths(environment)}))


def paths(environment: pathlib.Path) -> dict[str, Any]:
    """The parts of an installation's plan that are the image's."""
    python, pip = str(environment / "bin" / "python"), find_spec("pip")
    found: dict[str, Any] = {"python": python, "cache": str(environment / "trainyard-cache")}
    if pip is not None and pip.origin is not None:
        return {**found, "pip": [sys.executable, "-m", "pip", "--python", python]}
    return found


def fetch(file: dict[str, str], authorities: str | None, patience_s: float) -> None:
    """Download the file if it has a URL, and check it. Raises OSError, NoAnswer."""
    path = pathlib.Path(file["path"])
    if file.get("url"):
        path.parent.mkdir(parents=True, exist_ok=True)
        download(file["url"], path, authorities, patience_s)
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != file["sha256"]:
        raise OSError(f"its SHA-256 is {digest.hexdigest()}, not {file['sha256']}")


def download(url: str, path: pathlib.Path, authorities: str | None, patience_s: float) -> None:
    """The server may be away for a while, as when it is restarted. Raises OSError where it refuses, NoAnswer."""
    import ssl  # not every python3 has it, and not every installation downloads
    import urllib.error
    import urllib.request

    context = ssl.create_default_context(cafile=authorities)
    own = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*own)  # the user's own server needs no proxy
    patience = Patience(patience_s)
    while True:
        try:
            with opener.open(url, timeout=_TIMEOUT_S) as answer, path.open("wb") as content:
                shutil.copyfileobj(answer, content)
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError) and error.code in _REFUSING:
                raise
            pause_s = patience.pause_s()
            if not pause_s:
                raise NoAnswer(f"the server has not answered for {patience.waited_s:.0f} s: {error}") from error
            time.sleep(pause_s)
        else:
            return
