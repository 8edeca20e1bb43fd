"""Each run's own Python environment, with the packages of its job.

`environments/RUN/` of the state directory holds what was fetched and a virtual environment. It sees all
that the base environment has (the interpreter that the agent runs under, or --python), so that a trainer
finds its framework, and what the job's packages bring lies over that. Installing is done by pip alone, as
the real service did: first the packages themselves, whatever is there already, then what they depend on.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from trainyard_agent.host import process_tags as marks
from trainyard_agent.host.files import read_json, remove_tree, write_json
from trainyard_agent.staging import archives
from trainyard_agent.staging.background_stager import BackgroundStager
from trainyard_agent.staging.base import Staging, StagingFailed
from trainyard_agent.staging.package_fetcher import Fetcher
from trainyard_agent.staging.pip_output import telling
from trainyard_protocol.states import Reason
from trainyard_protocol.sync import RunOrder

_MARK = "staging"
_SITE_PACKAGES = """
import json, site, sysconfig
here = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
print(json.dumps(list(dict.fromkeys(here + user))))
"""


def end_leftovers(root: Path) -> None:
    """End what an agent that was killed left running: its pip. Nothing there: nothing."""
    for directory in root.iterdir() if root.exists() else ():
        marks.kill_marked(directory.name, _MARK)


class PackageStager(BackgroundStager):
    """For the process runtime. Several runs are prepared side by side."""

    def __init__(
        self,
        root: Path,
        fetcher: Fetcher,
        python: str,
    ) -> None:
        super().__init__(root)
        self._fetcher = fetcher
        self._base = python
        end_leftovers(root)

    async def _prepare(self, order: RunOrder) -> Staging:
        return Staging("ready", python=await self._environment(order))

    async def _environment(self, order: RunOrder) -> str:
        """Everything from the first download to the interpreter that the replicas are started with."""
        directory = self._root / order.run_id
        ready = directory / "ready.json"
        known = read_json(ready)
        if known is not None:
            return str(known["python"])
        await asyncio.to_thread(remove_tree, directory)
        (directory / "tmp").mkdir(mode=0o700, parents=True)
        packages = await self._fetcher.fetch(order, directory, self._say)
        self._say(order.run_id, "creating the Python environment")
        installer = _Installer(order.run_id, directory, self._base)
        await installer.create()
        if packages:
            self._say(order.run_id, f"installing {', '.join(package.name for package in packages)}")
            await installer.install(packages)
            self._say(order.run_id, "installing what the packages depend on")
            await installer.install_dependencies()
        write_json(ready, {"python": str(installer.python)})
        return str(installer.python)


class _Installer:
    """One virtual environment and the pip that fills it."""

    def __init__(self, run_id: str, directory: Path, base: str) -> None:
        self._run_id = run_id
        self._directory = directory
        self._base = base
        self._venv = directory / "venv"
        self.python = self._venv / "bin" / "python"

    async def create(self) -> None:
        trouble = f"No environment could be made of the base interpreter {self._base}: "
        code, output = await self._run([self._base, "-m", "venv", "--without-pip", str(self._venv)])
        if code:
            raise StagingFailed(Reason.STAGING_FAILED, trouble + telling(output))
        code, output = await self._run([self._base, "-c", _SITE_PACKAGES])
        if code:
            raise StagingFailed(Reason.STAGING_FAILED, trouble + telling(output))
        (self._site_packages() / "trainyard-base.pth").write_text(
            base_pth(json.loads(output.splitlines()[-1])), encoding="utf-8"
        )

    async def install(self, packages: Sequence[Path]) -> None:
        """The packages themselves, whatever the base environment has under their names."""
        flags = ["--upgrade", "--force-reinstall", "--no-deps"]
        isolated = [p for p in packages if await asyncio.to_thread(archives.needs_isolation, p)]
        with_base = [package for package in packages if package not in isolated]
        if with_base:  # the base's setuptools builds them: no index is asked, so that it works offline
            await self._pip([*flags, "--no-build-isolation", *map(str, with_base)])
        if isolated:
            await self._pip([*flags, *map(str, isolated)])

    async def install_dependencies(self) -> None:
        """What the packages need and the base lacks. The packages are named by version: they are not built
        a second time, and nothing is asked of an index that is here."""
        installed = [
            distribution
            for distribution in metadata.distributions(path=[str(self._site_packages())])
            if any("extra ==" not in need for need in distribution.requires or ())
        ]
        if installed:
            await self._pip([f"{d.metadata['Name']}=={d.version}" for d in installed])

    async def _pip(self, arguments: Sequence[str]) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--no-input"]
        quiet = ["--disable-pip-version-check", "--no-warn-script-location", "--root-user-action=ignore"]
        code, output = await self._run([*pip, *quiet, *arguments])
        if code:
            raise StagingFailed(Reason.PACKAGES_FAILED, telling(output))

    async def _run(self, command: Sequence[str]) -> tuple[int, str]:
        """Run to the end; answer with the exit status and all output. Cancelled: nothing of it is left."""
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
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            await asyncio.to_thread(marks.kill_marked, self._run_id, _MARK)
            await process.communicate()
            raise
        text = output.decode("utf-8", "replace")
        with (self._directory / "install.log").open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n{text}")
        return process.returncode or 0, text

    def _site_packages(self) -> Path:
        return next((self._venv / "lib").glob("python*/site-packages"))


def base_pth(site_packages: Sequence[str]) -> str:
    """A .pth file that adds these directories as `site` would: with the .pth files in them, so that what is
    installed there as editable is found too."""
    return "".join(f"import site; site.addsitedir({directory!r})\n" for directory in site_packages)


def _environment(inherited: Mapping[str, str], run_id: str, directory: Path) -> dict[str, str]:
    """pip runs code of the user's (setup.py): it gets the user's pip settings, and nothing of ours."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("TRAINYARD_", "PYTHON", "VIRTUAL_ENV"))
    }
    return {**kept, "TMPDIR": str(directory / "tmp"), **marks.mark(run_id, _MARK)}
