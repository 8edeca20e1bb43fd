"""Runs whose packages a stager installs, and the packages."""

import asyncio
import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from beds.run_ids import unique_run
from trainyard_agent.staging.base import Staging
from trainyard_agent.staging.environments.python_environment import PackageStager
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_protocol.job.runtimes import Runtimes
from unit.agent.stub_server import StubServer, run_order

RUN, OTHER = unique_run("1"), unique_run("2")
SETUP = """
from setuptools import setup
setup(name={name!r}, version="0.0.0", py_modules=[{module!r}], install_requires={needs})
"""


def package(
    tmp_path: Path, source: str, name: str = "tinytrainer", setup: str = "", needs: tuple[str, ...] = ()
) -> Path:
    """An sdist as gcloud makes them: setup.py and no pyproject.toml."""
    root = tmp_path / f"{name}-0.0.0"
    root.mkdir()
    (root / f"{name}.py").write_text(source)
    (root / "setup.py").write_text(setup or SETUP.format(name=name, module=name, needs=list(needs)))
    path = tmp_path / f"{name}-0.0.0.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(root, root.name)
    return path


def wheel(directory: Path, name: str, source: str = "", needs: tuple[str, ...] = ()) -> Path:
    """An installable wheel of version 1."""
    about = f"{name}-1.dist-info"
    metadata = [f"Name: {name}", "Version: 1", *(f"Requires-Dist: {need}" for need in needs)]
    directory.mkdir(exist_ok=True)
    path = directory / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", source)
        archive.writestr(f"{about}/METADATA", "\n".join(["Metadata-Version: 2.1", *metadata, ""]))
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


class Staged:
    def __init__(self, root: Path, python: str = sys.executable) -> None:
        self.root = root
        self.python = python
        self.runtimes: Runtimes | None = None
        self.patience_s = 600.0
        self.server = StubServer()
        self.activities: list[str] = []

    def upload(self, path: Path) -> str:
        content = path.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        self.server.packages[sha256] = content
        return f"staging://{sha256}/{path.name}"

    @asynccontextmanager
    async def stager(self, **environment: str) -> AsyncIterator[PackageStager]:
        async with self.server.client() as client:
            stager = PackageStager(
                self.root / "environments",
                PackageFetcher(client, environment.get("STORAGE_EMULATOR_HOST", "")),
                self.python,
                runtimes=self.runtimes,
                patience_s=self.patience_s,
            )
            try:
                yield stager
            finally:
                await stager.close()

    async def finish(self, stager: PackageStager, run_id: str = RUN) -> Staging:
        async with asyncio.timeout(120):
            while stager.status()[run_id].phase == "preparing":
                self.activities.append(stager.status()[run_id].activity)
                await asyncio.sleep(0.02)
        return stager.status()[run_id]

    async def prepare(self, *uris: str, run_id: str = RUN, **training_input: Any) -> Staging:
        async with self.stager() as stager:
            stager.begin(run_order(run_id, packageUris=uris, **training_input))
            return await self.finish(stager, run_id)


def run(python: str, source: str) -> str:
    done = subprocess.run([python, "-c", source], capture_output=True, text=True, check=True)
    return done.stdout.strip()
