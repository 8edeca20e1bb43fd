"""Writes requirements/*.txt: what is installed, with the hashes of every file of each version.

    make lock

The versions are those of constraints.txt, and what is needed is in pyproject.toml; after a change to either run this.
uv reads the hashes of all files (every Python, every platform) from the package index, which is that of pip
(PIP_INDEX_URL). The files name no index.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIRECTORY = ROOT / "requirements"
HEAD = "# Made by `make lock` from pyproject.toml and constraints.txt.\n"

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "demo": ("local", "trainer"),
    "dev": ("dev",),
    "server": ("server", "postgresql", "tensorboard"),
    "agent": ("agent",),
}
"""The files of the project with some of its extras, and with what builds it. `dev` contains `demo`."""

ENTRY = re.compile(r"^[A-Za-z0-9](?:.*\\\n)*.*\n", re.MULTILINE)


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build = project["build-system"]["requires"]
    tools = project["dependency-groups"]["tools"]
    found = {
        name: entries([str(ROOT / "pyproject.toml"), *(f"--extra={extra}" for extra in extras)], build)
        for name, extras in EXTRAS.items()
    }
    assert found["demo"] <= found["dev"], "dev must contain demo"
    found["dev"] -= found["demo"]
    found |= {"pip": entries([], ["pip"]), "tools": entries([], tools)}
    DIRECTORY.mkdir(exist_ok=True)
    for name, lines in found.items():
        more = "--requirement demo.txt\n" if name == "dev" else ""
        (DIRECTORY / f"{name}.txt").write_text(HEAD + more + "".join(sorted(lines)), encoding="utf-8")
        print(f"requirements/{name}.txt: {len(lines)} packages")
    return 0


def entries(sources: list[str], requirements: list[str]) -> set[str]:
    """The lines of each package: name, version and hashes."""
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", *sources, "-"]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--universal", "--python-version", "3.11"]
    command += ["--generate-hashes", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    index = os.environ.get("PIP_INDEX_URL")
    environment = os.environ | ({"UV_DEFAULT_INDEX": index} if index else {})
    answer = subprocess.run(
        command, input="\n".join(requirements), env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if answer.returncode:
        sys.exit(f"uv could not resolve the requirements (exit code {answer.returncode}); its message is above.")
    return {entry for entry in ENTRY.findall(answer.stdout) if "sys_platform == 'win32'" not in entry.split("\n")[0]}


if __name__ == "__main__":
    sys.exit(main())
