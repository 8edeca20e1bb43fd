"""Stager of the process runtime: each run's own Python environment, with the packages of its job.

`environments/RUN/` of the state directory holds the downloaded packages and a virtual environment. It includes the
packages of the base environment (the agent's interpreter, or --python), which has the trainer's framework, and the
job's packages override them. As in the real service, pip installs first the packages themselves, in any case, and then
their missing dependencies.
"""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainyard_agent.host import process_tags
from trainyard_agent.host.files import read_json, remove_tree, write_json
from trainyard_agent.staging import archives, job_dirs, program_module
from trainyard_agent.staging.background_stager import BackgroundStager
from trainyard_agent.staging.base import Staging, StagingFailed
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_agent.staging.pip_output import error_excerpt
from trainyard_protocol.states import Reason
from trainyard_protocol.sync import RunOrder

_TAG = "staging"
_SITE_PACKAGES = """
import json, site, sysconfig
site_packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
print(json.dumps(list(dict.fromkeys(site_packages + user))))
"""
_WITH_DEPENDENCIES = """
import json, resource, sys
from importlib import metadata
for limit, value in ((resource.RLIMIT_AS, 1 << 30), (resource.RLIMIT_CPU, 60)):
    resource.setrlimit(limit, (value, value))
found = metadata.distributions(path=[sys.argv[1]])
needy = [d for d in found if any("extra ==" not in need for need in d.requires or ())]
print(json.dumps([f"{d.metadata['Name']}=={d.version}" for d in needy]))
"""
_KEPT_OUTPUT = 1 << 20  # bytes of a command's output, at its beginning and again at its end


def kill_orphaned_installers(root: Path) -> None:
    """Kill the pip processes of an agent that was killed."""
    for directory in root.iterdir() if root.exists() else ():
        process_tags.kill_tagged(directory.name, _TAG)


class PackageStager(BackgroundStager):
    """Prepares runs of the process runtime, several concurrently."""

    def __init__(
        self,
        root: Path,
        fetcher: PackageFetcher,
        python: str,
    ) -> None:
        super().__init__(root)
        self._fetcher = fetcher
        self._base = python
        kill_orphaned_installers(root)

    async def _prepare(self, order: RunOrder) -> Staging:
        await asyncio.to_thread(job_dirs.create_default, order.job_dir)
        return Staging("ready", python=await self._environment(order))

    async def _environment(self, order: RunOrder) -> str:
        """Download and install. Returns the interpreter to start the replicas with."""
        directory = self._root / order.run_id
        ready = directory / "ready.json"
        saved = read_json(ready)
        if saved is not None:
            return str(saved["python"])
        await asyncio.to_thread(remove_tree, directory)
        (directory / "tmp").mkdir(mode=0o700, parents=True)
        packages = await self._fetcher.fetch(order, directory, self._set_activity)
        self._set_activity(order.run_id, "creating the Python environment")
        installer = _Installer(order.run_id, directory, self._base)
        await installer.create()
        if packages:
            self._set_activity(order.run_id, f"installing {', '.join(package.name for package in packages)}")
            await installer.install(packages)
            self._set_activity(order.run_id, "installing the packages' dependencies")
            await installer.install_dependencies()
        write_json(ready, {"python": str(installer.python)})
        return str(installer.python)


class _Installer:
    """Creates one virtual environment and installs packages into it."""

    def __init__(self, run_id: str, directory: Path, base: str) -> None:
        self._run_id = run_id
        self._directory = directory
        self._base = base
        self._venv = directory / "venv"
        self.python = self._venv / "bin" / "python"

    async def create(self) -> None:
        error = f"No environment could be created with the base interpreter {self._base}: "
        code, output = await self._run([self._base, "-m", "venv", "--without-pip", str(self._venv)])
        if code:
            raise StagingFailed(Reason.STAGING_FAILED, error + error_excerpt(output))
        code, output = await self._run([self._base, "-c", _SITE_PACKAGES])
        if code:
            raise StagingFailed(Reason.STAGING_FAILED, error + error_excerpt(output))
        lines = base_pth(json.loads(output.splitlines()[-1]))
        module, directory = program_module.source(), self._directory / "module"
        if module is not None:
            directory.mkdir()
            shutil.copyfile(module, directory / program_module.NAME)
            lines += f"{directory}\n"  # behind the base: an installed package of that name comes first
        (self._site_packages() / "trainyard-base.pth").write_text(lines, encoding="utf-8")

    async def install(self, packages: Sequence[Path]) -> None:
        """Install the packages themselves, even if the base environment has them."""
        flags = ["--upgrade", "--force-reinstall", "--no-deps"]
        isolated = [p for p in packages if await archives.needs_isolation(p)]
        with_base = [package for package in packages if package not in isolated]
        if with_base:  # built by the base's setuptools, which works offline
            await self._pip([*flags, "--no-build-isolation", *map(str, with_base)])
        if isolated:
            await self._pip([*flags, *map(str, isolated)])

    async def install_dependencies(self) -> None:
        """Install dependencies that the base environment lacks. The packages are given by version, so pip neither
        builds them again nor looks up what is installed."""
        code, output = await self._run(
            [sys.executable, "-I", "-c", _WITH_DEPENDENCIES, str(self._site_packages())]
        )
        if code:
            raise StagingFailed(
                Reason.PACKAGES_FAILED,
                f"The metadata of the installed packages cannot be read: {error_excerpt(output)}",
            )
        if installed := json.loads(output.splitlines()[-1]):
            await self._pip(installed)

    async def _pip(self, arguments: Sequence[str]) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--no-input"]
        quiet = ["--disable-pip-version-check", "--no-warn-script-location", "--root-user-action=ignore"]
        code, output = await self._run([*pip, *quiet, *arguments])
        if code:
            raise StagingFailed(Reason.PACKAGES_FAILED, error_excerpt(output))

    async def _run(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a command. Returns its exit status and output. Cancelled: all its processes are killed."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self._directory,
            env=_environment(os.environ, self._run_id, self._directory),
            start_new_session=True,
        )
        try:
            output = await _bounded(process.stdout)
            await process.wait()
        except asyncio.CancelledError:
            await asyncio.to_thread(process_tags.kill_tagged, self._run_id, _TAG)
            await _bounded(process.stdout)  # until the last of them is gone
            await process.wait()
            raise
        text = output.decode("utf-8", "replace")
        with (self._directory / "install.log").open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n{text}")
        return process.returncode or 0, text

    def _site_packages(self) -> Path:
        return next((self._venv / "lib").glob("python*/site-packages"))


async def _bounded(stream: asyncio.StreamReader | None) -> bytes:
    """All that is read if it is short, else its beginning and its end."""
    first, last = b"", b""
    while stream is not None and (block := await stream.read(_KEPT_OUTPUT)):
        room = _KEPT_OUTPUT - len(first)
        first, last = first + block[:room], (last + block[room:])[-_KEPT_OUTPUT:]
    return first + last


def base_pth(site_packages: Sequence[str]) -> str:
    """A .pth file that adds these directories as `site` does, with their .pth files, for editable installs."""
    return "".join(f"import site; site.addsitedir({directory!r})\n" for directory in site_packages)


def _environment(inherited: Mapping[str, str], run_id: str, directory: Path) -> dict[str, str]:
    """pip's environment: the user's settings, and no variables of ours, because pip runs the user's setup.py."""
    passed = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("TRAINYARD_", "PYTHON", "VIRTUAL_ENV"))
    }
    return {**passed, "TMPDIR": str(directory / "tmp"), **process_tags.tag(run_id, _TAG)}
