import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import trainyard_protocol
from unit.agent.staging.environments.environment_lab import Staged

PACKAGES = ("fastapi", "httpx", "psutil", "setuptools", "wheel")


def needed(*names: str) -> dict[str, metadata.Distribution]:
    """The packages and what they need, as far as it is here."""
    found: dict[str, metadata.Distribution] = {}
    left = [*names]
    while left:
        name = left.pop()
        try:
            dist = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of an extra, or of another Python
            continue
        if dist.metadata["Name"] not in found:
            found[dist.metadata["Name"]] = dist
            left += [match[0] for need in dist.requires or () if (match := re.match(r"[\w.-]*\w", need))]
    return found


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with a few of this one's packages, and ours. An installation reads all that its base has."""
    venv = tmp_path_factory.mktemp("base")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site_packages,) = venv.glob("lib/python*/site-packages")
    for dist in needed(*PACKAGES).values():
        for top in {Path(file.parts[0]) for file in dist.files or () if ".." not in file.parts}:
            if not (site_packages / top).exists() and top.name != "__pycache__":
                (site_packages / top).symlink_to(Path(str(dist.locate_file(top))))
    (site_packages / "ours.pth").write_text(str(Path(trainyard_protocol.__file__).parents[1]))
    return str(venv / "bin" / "python")


@pytest.fixture
def staged(tmp_path: Path, base: str) -> Staged:
    return Staged(tmp_path, base)
