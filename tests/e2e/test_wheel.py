"""The wheel: a plain install is a working command line, `trainyard[local]` a working service."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from beds.installed.installed import requirements, top_levels
from e2e.harness import REPOSITORY, Service, local

OFFLINE = ("Failed to establish a new connection", "Temporary failure in name resolution", "ConnectTimeout")
LOG = "hello from the wheel"


def run(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if any(sign in done.stderr for sign in OFFLINE) and "CI" not in os.environ:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    flags = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", directory)
    run(sys.executable, "-m", "pip", "wheel", *flags, REPOSITORY)
    (built,) = directory.glob("trainyard-*.whl")
    return built


def installed(root: Path, wheel: Path, *flags: object) -> Path:
    """The `bin` of an empty environment with the wheel."""
    run(sys.executable, "-m", "venv", "--without-pip", root)
    pip = (sys.executable, "-m", "pip", "--python", root / "bin" / "python")
    run(*pip, "install", "--quiet", "--disable-pip-version-check", *flags, wheel)
    return root / "bin"


def link_requirements(root: Path, extra: str) -> None:
    """Install what `trainyard[extra]` requires, and no more, as links to what these tests run with."""
    (site,) = root.glob("lib/python*/site-packages")
    (own,) = metadata.distributions(name="trainyard", path=[str(site)])
    for distribution in requirements(own, extra):
        for name, path in top_levels(distribution).items():
            if not (site / name).exists():
                (site / name).symlink_to(path)


def test_plain_install_is_a_command_line_and_a_python_client(wheel: Path, tmp_path: Path) -> None:
    programs = installed(tmp_path / "venv", wheel, "--constraint", REPOSITORY / "constraints.txt")
    assert "\n  jobs " in run(programs / "trainyard", "--help")
    assert "training" in run(programs / "jobs", "submit", "--help")
    run(programs / "python", "-c", "from trainyard import Client, log")
    manifest = ("agent", "manifest", "--server", "https://trains.example.com", "--image", "agent")
    assert "kind: Deployment" in run(programs / "trainyard", *manifest)
    service = Service(tmp_path / "service", programs)
    refused = service.run("up")
    assert refused.returncode == 1
    assert "pip install 'trainyard[local]'" in refused.stderr


def test_local_install_runs_a_job(wheel: Path, tmp_path: Path) -> None:
    programs = installed(tmp_path / "venv", wheel, "--no-deps")
    link_requirements(tmp_path / "venv", "local")
    service = Service(tmp_path / "service", programs)
    service.program(f"print({LOG!r})")
    config = service.config(**local())
    service.ok("up", "--runtime", "process")
    try:
        assert LOG in service.train("first", "--config", str(config), "--package-path", "prog")
    finally:
        service.ok("down")
    assert not service.processes()
