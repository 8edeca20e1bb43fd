"""Fills a run's own Python environment, inside a container of its runtime image: `python3 install.py PLAN`.

The same steps as `packages` takes for the process runtime, with the image's own pip. Copied into the
container, so the standard library only, and any Python 3 that images of runtimes have. PLAN is JSON:

    environment   where it is made
    with_base     packages that the image's own setuptools can build, so that no index is asked
    isolated      packages that name other build tools

Exits 0; NO_ENVIRONMENT where the image cannot make one; else with pip's own status. What pip said is on stdout.
"""

import json
import pathlib
import site
import subprocess
import sys
import sysconfig
from importlib import metadata

NO_ENVIRONMENT = 3


def main(plan_file: str) -> None:
    plan = json.loads(pathlib.Path(plan_file).read_text())
    environment = pathlib.Path(plan["environment"])
    make = [sys.executable, "-m", "venv", "--without-pip", "--clear", str(environment)]
    if subprocess.run(make, check=False).returncode:
        sys.exit(NO_ENVIRONMENT)
    (packages,) = (environment / "lib").glob("python*/site-packages")
    # As `site` would: with the .pth files in them, so that what is installed there as editable is found too.
    base = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    lines = [f"import site; site.addsitedir({directory!r})\n" for directory in dict.fromkeys(base)]
    (packages / "trainyard-base.pth").write_text("".join(lines))

    python = str(environment / "bin" / "python")
    own = ["--upgrade", "--force-reinstall", "--no-deps"]
    if plan["with_base"]:
        pip(python, *own, "--no-build-isolation", *plan["with_base"])
    if plan["isolated"]:
        pip(python, *own, *plan["isolated"])
    # What they need and the image lacks. Named by version: nothing is built twice or asked of an index.
    needy = [
        f"{found.metadata['Name']}=={found.version}"
        for found in metadata.distributions(path=[str(packages)])
        if any("extra ==" not in need for need in found.requires or ())
    ]
    if needy:
        pip(python, *needy)


def pip(python: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-input"]
    quiet = ["--disable-pip-version-check", "--no-warn-script-location"]
    status = subprocess.run([*command, *quiet, *arguments], stderr=subprocess.STDOUT, check=False).returncode
    if status:
        sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1])
