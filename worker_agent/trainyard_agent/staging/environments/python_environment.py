"""Stager of the process runtime: each run's own Python environment, with the packages of its job.

`environments/RUN/` of the state directory holds the downloaded packages and a virtual environment. It includes the
packages of the base environment (the agent's interpreter, --python, or that of the job's runtime version), which has
the trainer's framework, and the job's packages override them. As in the real service, first the packages themselves are
installed, in any case, and then what they lack and what the program's files declare (`trainyard_agent.installer`).
Where that brings a framework of its own, the run sees nothing of the base, whose packages fit another framework.

Where a run has a user of its own (`host/job_users.py`), uv, pip and the setup.py of packages run as that user, to whom
the environment belongs meanwhile. Afterwards it belongs to the agent: the job reads it, and cannot change it.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trainyard_agent.host import environment as job_environment
from trainyard_agent.host import unix_users
from trainyard_agent.host.files import read_json, remove_tree, write_json
from trainyard_agent.host.job_users import JobUsers
from trainyard_agent.installer import manifest, tree
from trainyard_agent.installer.environment import BASE_FILE, base_lines, brings_framework, drop_tree
from trainyard_agent.installer.installation import PROJECT
from trainyard_agent.installer.output import Refused, error_excerpt
from trainyard_agent.installer.patience import PATIENCE_S
from trainyard_agent.staging import archives, job_dirs, program_module
from trainyard_agent.staging.background_stager import BackgroundStager
from trainyard_agent.staging.base import Staging, StagingFailed
from trainyard_agent.staging.environments import installed, kept_environments
from trainyard_agent.staging.environments.base_environments import BaseEnvironments
from trainyard_agent.staging.environments.installer_process import InstallerProcess, kill_orphaned_installers
from trainyard_agent.staging.environments.kept_environments import KeptEnvironments
from trainyard_agent.staging.inside.files import files
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_protocol.job.runtimes import Runtimes
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.observations import ResolvedRun
from trainyard_protocol.wire.sync import RunOrder

_SITE_PACKAGES = """
import json, site, sysconfig
site_packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
print(json.dumps(list(dict.fromkeys(site_packages + user))))
"""
_KEPT = "Its environment is that of an earlier run of the same packages, which has all that was installed for it"
_KEPT_DEPENDENCIES = "What it declares was installed for an earlier run: nothing is fetched"

_NAME_AND_VERSION = 2

_T = TypeVar("_T")


class PackageStager(BackgroundStager):
    """Prepares runs of the process runtime, several concurrently."""

    def __init__(
        self,
        root: Path,
        fetcher: PackageFetcher,
        python: str,
        users: JobUsers | None = None,
        runtimes: Runtimes | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """New runs have the agent's user without `users`; without `runtimes` all have the agent's environment."""
        super().__init__(root, patience_s)
        self._fetcher = fetcher
        self._bases = BaseEnvironments(root.parent / "runtimes", python, runtimes, patience_s)
        self._users = users or JobUsers(root.parent)
        self._kept = KeptEnvironments(root.parent / "kept-environments")
        self._keeping = asyncio.Lock()
        self._site_packages: dict[str, list[str]] = {}
        kill_orphaned_installers(root, self._users)

    async def _prepare(self, order: RunOrder) -> Staging:
        own_job_dir = "" if "://" in order.job_dir else order.job_dir
        user = await asyncio.to_thread(self._users.assign, order.run_id, own_job_dir)
        await asyncio.to_thread(job_dirs.create_default, order.job_dir, user)
        python, notes = await self._environment(order, user)
        requirements = await asyncio.to_thread(installed.requirements, self._root / order.run_id)
        resolved = ResolvedRun(requirements=requirements, installed=tuple(notes))
        return Staging("ready", python=python, resolved=resolved.bounded())

    async def discard(self, run_id: str) -> None:
        await super().discard(run_id)
        await asyncio.to_thread(self._users.release, run_id)

    async def _environment(self, order: RunOrder, user: int | None) -> tuple[str, list[str]]:
        """Download and install. Returns the interpreter to start the replicas with, and what was installed, in
        sentences."""
        directory = self._root / order.run_id
        ready = directory / "ready.json"
        saved = read_json(ready)
        if saved is not None and saved.get("user") == user:
            return str(saved["python"]), list(saved.get("notes", ()))
        await asyncio.to_thread(self._users.kill_processes, order.run_id)
        await asyncio.to_thread(remove_tree, directory)
        unix_users.make_passage(directory, user)
        unix_users.make_private(directory / "tmp", user)
        packages = await self._fetcher.fetch(order, directory, self._set_activity)
        self._set_activity(order.run_id, "creating the Python environment")
        report = partial(self._set_activity, order.run_id)
        base = await self._bases.python_of(order, directory, report)
        inspections = {path: await archives.inspect(path) for path in packages} if order.training_input.secrets else {}
        secrets = await self._fetcher.secrets(order, list(inspections))
        process = InstallerProcess(order.run_id, directory, user, report, secrets, self._patience_s)
        installer = _Installer(directory, base, user, process)
        if base not in self._site_packages:
            self._site_packages[base] = await installer.site_packages()
        site_packages = self._site_packages[base]
        settings = job_environment.of_installer(os.environ, None if user is None else 1, Path())
        name, empty = [
            await asyncio.to_thread(kept_environments.key, order.project, some, base, site_packages, of)
            for some, of in ((packages, {**settings, **secrets.values}), ((), settings))
        ]
        installer.add_module()
        if await self._alone(partial(self._kept.restore, name, directory)):
            process.notes += [_KEPT] if packages else []
        else:
            if not packages or not await self._alone(partial(self._kept.restore, empty, directory, copied=True)):
                await installer.create(site_packages)
                await self._alone(partial(self._kept.keep, empty, directory, copied=bool(packages)))
            if packages:
                self._set_activity(order.run_id, f"installing {', '.join(package.name for package in packages)}")
                if await installer.unpack(packages):
                    await self._install(order, installer, packages, (empty, secrets.values))
                await self._alone(partial(self._kept.keep, name, directory))
        write_json(ready, {"python": str(installer.python), "user": user, "notes": process.notes})
        return str(installer.python), process.notes

    async def _install(
        self, order: RunOrder, installer: "_Installer", packages: Sequence[Path], over: tuple[str, Mapping[str, str]]
    ) -> None:
        """Install the packages that are not unpacked over the environment `over`, and then what all of them lack: what
        was installed for others of their owner that require the same, or else anew. The environment is then shut."""
        requires: object = installer.metadata()
        if requires is None:
            await installer.open(packages)
            requires = found = await installer.install(packages)
            await self._seal(order, installer)
            if not installer.is_lacking(found):
                return
        directory = self._root / order.run_id
        needs = [requires, installer.declared(), sorted(over[1].items())]
        name = kept_environments.key_of_dependencies(order.owner, over[0], needs)
        if await self._alone(partial(self._kept.restore_dependencies, name, directory)):
            installer.note(_KEPT_DEPENDENCIES)
            await asyncio.to_thread(drop_tree, directory / "venv")
            return
        # The next run unpacks its program itself, if it has a project to install before.
        unpacked = tree.NAME if (directory / "venv" / tree.NAME).exists() else ""
        before = await asyncio.to_thread(kept_environments.files, directory, unpacked)
        await installer.open(packages)
        await installer.install_dependencies()
        await self._seal(order, installer)
        await self._alone(partial(self._kept.keep_dependencies, name, directory, before, unpacked))

    async def _seal(self, order: RunOrder, installer: "_Installer") -> None:
        """End what the packages' installation has started, and shut the environment."""
        await asyncio.to_thread(self._users.kill_processes, order.run_id)
        await installer.seal()

    async def _alone(self, work: Callable[[], _T]) -> _T:
        """Work on the kept environments in a thread, one run at a time. It is done to its end, though its run is
        discarded meanwhile: the run's directory is removed only then."""
        async with self._keeping:
            thread = asyncio.create_task(asyncio.to_thread(work))
            try:
                return await asyncio.shield(thread)
            finally:
                await asyncio.wait({thread})


class _Installer:
    """Creates one virtual environment and installs packages into it."""

    def __init__(self, directory: Path, base: str, user: int | None, process: InstallerProcess) -> None:
        self._directory = directory
        self._base = base
        self._user = user
        self._process = process
        self._venv = directory / "venv"
        self._module = directory / "module"
        self._inspections: Mapping[Path, archives.Inspection] = {}
        self.python = self._venv / "bin" / "python"

    async def site_packages(self) -> list[str]:
        """The directories with the packages of the base; without those below the home directory of a run's user."""
        output = await self._run_base(["-c", _SITE_PACKAGES])
        directories: list[str] = json.loads(output.splitlines()[-1])
        return [directory for directory in directories if not Path(directory).is_relative_to(self._directory)]

    def add_module(self) -> None:
        """Put the package beside the environment that programs report with."""
        program_module.copy_to(self._module)

    async def create(self, site_packages: Sequence[str]) -> None:
        await self._run_base(["-m", "venv", "--without-pip", str(self._venv)])
        lines = base_lines(site_packages)
        if self._module.exists():
            lines += f"{self._module}\n"  # behind the base: an installed package of that name comes first
        (self._site_packages() / BASE_FILE).write_text(lines, encoding="utf-8")
        for name, content in files().items():
            (self._site_packages() / name).write_text(content, encoding="utf-8")

    async def _run_base(self, arguments: Sequence[str]) -> str:
        code, output = await self._process.run([self._base, *arguments])
        if code:
            error = f"No environment could be created with the base interpreter {self._base}: "
            raise StagingFailed(Reason.STAGING_FAILED, error + error_excerpt(output))
        return output

    async def open(self, packages: Sequence[Path]) -> None:
        """Let the run's user, if it has one, read the packages and change the environment."""
        if self._user is None:
            return
        for package in packages:
            package.parent.chmod(0o755)
            package.chmod(0o644)
        await asyncio.to_thread(unix_users.give, self._venv, self._user)

    async def seal(self) -> None:
        """The opposite, after its last process."""
        if self._user is not None:
            await asyncio.to_thread(unix_users.seal, self._venv, self._user)

    async def unpack(self, packages: Sequence[Path]) -> bool:
        """Check the packages, and unpack wheels of pure Python. Returns whether more is to be done: to install the
        others, or dependencies, or to take away the base of a framework. The run's user has written nothing yet."""
        target = self._site_packages() if len({_distribution(path) for path in packages}) == len(packages) else None
        self._inspections = {path: await archives.inspect(path, target) for path in packages}
        unpacked = ((_distribution(path), each) for path, each in self._inspections.items())
        return self.metadata() is None or self.is_lacking(
            [name, "", *each.depends * ["some"]] for name, each in unpacked
        )

    def note(self, text: str) -> None:
        """Say something of the installation in the job's log."""
        self._process.notes.append(text)

    def metadata(self) -> list[str] | None:
        """The digests of the packages' METADATA. None: not all are unpacked, or the program has a project to build."""
        if not all(each.unpacked for each in self._inspections.values()):
            return None
        if any(step["what"] == PROJECT for step in self._steps()):
            return None
        return [inspection.metadata for inspection in self._inspections.values()]

    def declared(self) -> object:
        """The part of the manifest that decides on what the program's files declare."""
        part = self._manifest()
        return None if part is None else [part.get("digest"), part["steps"]]

    def is_lacking(self, installed: Iterable[Sequence[str]]) -> bool:
        """Whether more is to be installed than these packages (name, version and requirements), or the base of a
        framework to be taken away."""
        found = list(installed)
        needs = any(len(package) > _NAME_AND_VERSION for package in found)
        return needs or bool(self._steps()) or brings_framework(name for name, *_ in found)

    async def install(self, packages: Sequence[Path]) -> list[list[str]]:
        """Install the packages that are not unpacked, even if the base environment has them, and the program's project.
        Returns name, version and requirements of all."""
        others = [path for path in packages if not self._inspections[path].unpacked]
        # Built by the base's setuptools, which works offline.
        given = [{"path": str(path), "with_base": not self._inspections[path].isolated} for path in others]
        return await self._process.install(self._base, self.python, {"own": True, "packages": given})

    async def install_dependencies(self) -> None:
        """Install what the base environment lacks of what the packages need and the program declares, or all if that
        brings a framework."""
        await self._process.install(self._base, self.python, {"dependencies": True})

    def _steps(self) -> list[dict[str, object]]:
        part = self._manifest()
        return [] if part is None else list(part["steps"])

    def _manifest(self) -> dict[str, Any] | None:
        try:
            return manifest.install(self._site_packages())
        except Refused as refused:
            raise StagingFailed(Reason.PACKAGES_FAILED, str(refused)) from refused

    def _site_packages(self) -> Path:
        return next((self._venv / "lib").glob("python*/site-packages"))


def _distribution(path: Path) -> str:
    """The name of a package, out of that of its file or directory."""
    return path.name.partition("-")[0].lower()
