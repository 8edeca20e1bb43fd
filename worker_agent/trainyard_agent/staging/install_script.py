"""Installs a run's own Python environment, inside a container of its runtime image: `python3 install.py PLAN`.

The same steps as `python_environment`, with the image's own pip. It is copied into the container, so it uses only the
standard library of any Python 3. PLAN is JSON:

    environment   the directory to create
    with_base     packages that the image's own setuptools can build, without an index
    isolated      packages that require other build tools
    module        a module for programs whose environment has none of that name; optional

Exits with 0; NO_ENVIRONMENT if the image cannot create one; else pip's exit status. pip's output is on stdout.
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
    # As `site` does, with the .pth files in them, so that editable installs are found too.
    base = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    lines = [f"import site; site.addsitedir({directory!r})\n" for directory in dict.fromkeys(base)]
    if plan.get("module"):
        module = pathlib.Path(plan["module"])
        (environment / "module").mkdir()
        (environment / "module" / module.name).write_bytes(module.read_bytes())
        lines.append(
            f"{environment}/module\n"
        )  # behind the base: an installed package of that name comes first
    (packages / "trainyard-base.pth").write_text("".join(lines))

    python = str(environment / "bin" / "python")
    own = ["--upgrade", "--force-reinstall", "--no-deps"]
    if plan["with_base"]:
        pip(python, *own, "--no-build-isolation", *plan["with_base"])
    if plan["isolated"]:
        pip(python, *own, *plan["isolated"])
    # Missing dependencies. The packages are given by version: nothing is built twice or looked up in an index.
    dependents = [
        f"{distribution.metadata['Name']}=={distribution.version}"
        for distribution in metadata.distributions(path=[str(packages)])
        if any("extra ==" not in need for need in distribution.requires or ())
    ]
    if dependents:
        pip(python, *dependents)


def pip(python: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-input"]
    quiet = ["--disable-pip-version-check", "--no-warn-script-location"]
    status = subprocess.run([*command, *quiet, *arguments], stderr=subprocess.STDOUT, check=False).returncode
    if status:
        sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1])
