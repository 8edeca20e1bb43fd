"""Installs a run's own Python environment, inside a container of its runtime image: `python3 install.py PLAN`.

The same steps as `python_environment`, with the image's own pip. It is copied into the container, so it uses only the
standard library of any Python 3. PLAN is JSON:

    environment   the directory to create
    with_base     packages that the image's own setuptools can build, without an index
    isolated      packages that require other build tools
    module        a package (directory) for programs whose environment has none of that name; optional
    startup       names and contents of a .pth file, which each Python of the environment reads at its start, and of
                  the modules that it loads
    files         `path` and `sha256` of packages to check first, and the `url` of those that are to be downloaded;
                  optional
    authorities   file with the certificates that downloads trust; optional: those of the image

Exits with 0; NO_ENVIRONMENT if the image cannot create one; NOT_FETCHED if a package is not there as it should be; else
pip's exit status. pip's output is on stdout.
"""

import hashlib
import json
import pathlib
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from importlib import metadata

NO_ENVIRONMENT, NOT_FETCHED = 3, 75
FRAMEWORKS = ("jax", "jaxlib", "tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "torch")

_TRIES, _PAUSE_S, _TIMEOUT_S = 10, 3.0, 60.0


def main(plan_file: str) -> None:
    plan = json.loads(pathlib.Path(plan_file).read_text())
    environment = pathlib.Path(plan["environment"])
    for file in plan.get("files", ()):
        try:
            fetch(file, plan.get("authorities"))
        except OSError as error:
            print(f"{pathlib.Path(file['path']).name} could not be fetched: {error}.")
            sys.exit(NOT_FETCHED)
    make = [sys.executable, "-m", "venv", "--without-pip", "--clear", str(environment)]
    if subprocess.run(make, check=False).returncode:
        sys.exit(NO_ENVIRONMENT)
    (packages,) = (environment / "lib").glob("python*/site-packages")
    # As `site` does, with the .pth files in them, so that editable installs are found too.
    base = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    lines = [f"import site; site.addsitedir({directory!r})\n" for directory in dict.fromkeys(base)]
    module_lines = []
    if plan.get("module"):
        module = pathlib.Path(plan["module"])
        shutil.copytree(module, environment / "module" / module.name)
        module_lines.append(f"{environment}/module\n")
    # The module is behind the base: an installed package of that name comes first.
    (packages / "trainyard-base.pth").write_text("".join([*lines, *module_lines]))

    for name, content in plan["startup"].items():
        (packages / name).write_text(content)

    python = str(environment / "bin" / "python")
    own = ["--upgrade", "--force-reinstall", "--no-deps"]
    if plan["with_base"]:
        pip(python, *own, "--no-build-isolation", *plan["with_base"])
    if plan["isolated"]:
        pip(python, *own, *plan["isolated"])
    install_missing(python, packages)
    if brings_framework(d.metadata["Name"] for d in metadata.distributions(path=[str(packages)])):
        (packages / "trainyard-base.pth").write_text("".join(module_lines))
        install_missing(python, packages)


def install_missing(python: str, packages: pathlib.Path) -> None:
    """Install missing dependencies. The packages are given by version: nothing is built twice or looked up in an
    index."""
    dependents = [
        f"{distribution.metadata['Name']}=={distribution.version}"
        for distribution in metadata.distributions(path=[str(packages)])
        if any("extra ==" not in need for need in distribution.requires or ())
    ]
    if dependents:
        pip(python, *dependents)


def brings_framework(names: Iterable[str]) -> bool:
    """Whether one of these packages, which were installed for a run, is a framework. Those of its base are then out of
    its sight: TensorFlow imports JAX where there is one, and both need other versions of the same packages."""
    return any(re.sub(r"[-_.]+", "-", name).lower() in FRAMEWORKS for name in names)


def fetch(file: dict[str, str], authorities: str | None) -> None:
    """Download the file if it has a URL, and check it. Raises OSError."""
    path = pathlib.Path(file["path"])
    if file.get("url"):
        path.parent.mkdir(parents=True, exist_ok=True)
        download(file["url"], path, authorities)
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != file["sha256"]:
        raise OSError(f"its SHA-256 is {digest.hexdigest()}, not {file['sha256']}")


def download(url: str, path: pathlib.Path, authorities: str | None) -> None:
    """The server may be away for a while, as when it is restarted. Raises OSError."""
    import ssl  # not every python3 has it, and not every installation downloads
    import urllib.error
    import urllib.request

    context = ssl.create_default_context(cafile=authorities)
    own = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*own)  # the user's own server needs no proxy
    for attempt in range(1, _TRIES + 1):
        try:
            with opener.open(url, timeout=_TIMEOUT_S) as answer, path.open("wb") as content:
                shutil.copyfileobj(answer, content)
        except OSError as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or attempt == _TRIES:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def pip(python: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-input"]
    quiet = ["--disable-pip-version-check", "--no-warn-script-location"]
    status = subprocess.run([*command, *quiet, *arguments], stderr=subprocess.STDOUT, check=False).returncode
    if status:
        sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1])
