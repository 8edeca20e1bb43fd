"""Stager of the process runtime: each run's own Python environment, with the packages of its job.

`environments/RUN/` of the state directory holds the downloaded packages and a virtual environment. It includes the
packages of the base environment (the agent's interpreter, --python, or that of the job's runtime version), which has
the trainer's framework, and the job's packages override them. As in the real service, first the packages themselves are
installed, in any case, and then their missing dependencies. Where these bring a framework of their own, the run sees
nothing of the base, whose packages fit another framework.

Where a run has a user of its own (`host/job_users.py`), pip and the setup.py of packages run as that user, to whom the
environment belongs meanwhile. Afterwards it belongs to the agent: the job reads it, and cannot change it.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from trainyard_agent.host import environment as job_environment
from trainyard_agent.host import unix_users
from trainyard_agent.host.files import read_json, remove_tree, write_json
from trainyard_agent.host.job_users import JobUsers
from trainyard_agent.runtimes.install_script import brings_framework
from trainyard_agent.runtimes.pip_output import error_excerpt
from trainyard_agent.staging import archives, job_dirs, program_module
from trainyard_agent.staging.background_stager import BackgroundStager
from trainyard_agent.staging.base import Staging, StagingFailed
from trainyard_agent.staging.environments import dependencies, installed, kept_environments
from trainyard_agent.staging.environments.base_environments import BaseEnvironments
from trainyard_agent.staging.environments.installer_process import (
    InstallerProcess,
    kill_orphaned_installers,
    pip_directory,
)
from trainyard_agent.staging.environments.kept_environments import KeptEnvironments
from trainyard_agent.staging.inside.files import files
from trainyard_agent.staging.package_fetcher import PackageFetcher
from trainyard_protocol.job.runtimes import Runtimes
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import ResolvedRun, RunOrder

_SITE_PACKAGES = """
import json, site, sysconfig
site_packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
print(json.dumps(list(dict.fromkeys(site_packages + user))))
"""
_WITHOUT_BASE = """
import pathlib, sys
pth = pathlib.Path(sys.argv[1])
pth.write_text("".join(line for line in pth.read_text().splitlines(True) if not line.startswith("import ")))
"""

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
    ) -> None:
        """New runs have the agent's user without `users`; without `runtimes` all have the agent's environment."""
        super().__init__(root)
        self._fetcher = fetcher
        self._bases = BaseEnvironments(root.parent / "runtimes", python, runtimes)
        self._users = users or JobUsers(root.parent)
        self._kept = KeptEnvironments(root.parent / "kept-environments")
        self._keeping = asyncio.Lock()
        self._site_packages: dict[str, list[str]] = {}
        kill_orphaned_installers(root, self._users)

    async def _prepare(self, order: RunOrder) -> Staging:
        own_job_dir = "" if "://" in order.job_dir else order.job_dir
        user = await asyncio.to_thread(self._users.assign, order.run_id, own_job_dir)
        await asyncio.to_thread(job_dirs.create_default, order.job_dir, user)
        python = await self._environment(order, user)
        requirements = await asyncio.to_thread(installed.requirements, self._root / order.run_id)
        return Staging("ready", python=python, resolved=ResolvedRun(requirements=requirements).bounded())

    async def discard(self, run_id: str) -> None:
        await super().discard(run_id)
        await asyncio.to_thread(self._users.release, run_id)

    async def _environment(self, order: RunOrder, user: int | None) -> str:
        """Download and install. Returns the interpreter to start the replicas with."""
        directory = self._root / order.run_id
        ready = directory / "ready.json"
        saved = read_json(ready)
        if saved is not None and saved.get("user") == user:
            return str(saved["python"])
        await asyncio.to_thread(self._users.kill_processes, order.run_id)
        await asyncio.to_thread(remove_tree, directory)
        unix_users.make_passage(directory, user)
        unix_users.make_private(directory / "tmp", user)
        packages = await self._fetcher.fetch(order, directory, self._set_activity)
        self._set_activity(order.run_id, "creating the Python environment")
        base = await self._bases.python_of(
            order, directory, lambda activity: self._set_activity(order.run_id, activity)
        )
        installer = _Installer(order.run_id, directory, base, user)
        if base not in self._site_packages:
            self._site_packages[base] = await installer.site_packages()
        site_packages = self._site_packages[base]
        settings = job_environment.of_installer(os.environ, None if user is None else 1, Path())
        name, empty = [
            await asyncio.to_thread(kept_environments.key, order.project, some, base, site_packages, settings)
            for some in (packages, ())
        ]
        installer.add_module()
        if await self._alone(partial(self._kept.restore, name, directory)):
            write_json(ready, {"python": str(installer.python), "user": user})
            return str(installer.python)
        if not packages or not await self._alone(partial(self._kept.restore, empty, directory, copied=True)):
            await installer.create(site_packages)
            await self._alone(partial(self._kept.keep, empty, directory, copied=bool(packages)))
        if packages:
            self._set_activity(order.run_id, f"installing {', '.join(package.name for package in packages)}")
            if await installer.unpack(packages):
                await self._install(order, installer, packages, empty)
            await self._alone(partial(self._kept.keep, name, directory))
        write_json(ready, {"python": str(installer.python), "user": user})
        return str(installer.python)

    async def _install(self, order: RunOrder, installer: "_Installer", packages: Sequence[Path], empty: str) -> None:
        """Install the packages that are not unpacked over the environment `empty`, and then what all of them lack: what
        pip installed for others of their owner that require the same, or else by pip. The environment is then shut."""
        needs, metadata = None, installer.metadata()
        if metadata is None:
            await installer.open(packages)
            await installer.install(packages)
            needs = await installer.needs()
            await self._seal(order, installer)
            if not needs.lacking and not needs.framework:
                return
        directory = self._root / order.run_id
        name = kept_environments.key_of_dependencies(order.owner, empty, needs.packages if needs else metadata)
        if await self._alone(partial(self._kept.restore_dependencies, name, directory)):
            return
        self._set_activity(order.run_id, "installing the packages' dependencies")
        before = await asyncio.to_thread(kept_environments.files, directory)
        await installer.open(packages)
        await installer.install_dependencies(needs or await installer.needs())
        await self._seal(order, installer)
        await self._alone(partial(self._kept.keep_dependencies, name, directory, before))

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


@dataclass(frozen=True, slots=True)
class _Needs:
    """Needs of the packages of a run. `lacking`: a requirement of each that lacks dependencies, by version, so that
    pip neither builds it again nor looks it up. `packages` describes all of them, as `dependencies` does."""

    lacking: list[str]
    packages: list[list[str]]

    @property
    def framework(self) -> bool:
        return brings_framework(name for name, *_ in self.packages)


class _Installer:
    """Creates one virtual environment and installs packages into it."""

    def __init__(self, run_id: str, directory: Path, base: str, user: int | None) -> None:
        self._directory = directory
        self._base = base
        self._user = user
        self._process = InstallerProcess(run_id, directory, user)
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
        lines = base_pth(site_packages)
        if self._module.exists():
            lines += f"{self._module}\n"  # behind the base: an installed package of that name comes first
        self._base_file().write_text(lines, encoding="utf-8")
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
        is_complete = all(each.unpacked and not each.depends for each in self._inspections.values())
        return not is_complete or brings_framework(self._own())

    def metadata(self) -> list[str] | None:
        """The digests of the packages' METADATA. None: not all are unpacked."""
        digests = [inspection.metadata for inspection in self._inspections.values() if inspection.unpacked]
        return digests if len(digests) == len(self._inspections) else None

    async def install(self, packages: Sequence[Path]) -> None:
        """Install the packages that are not unpacked, even if the base environment has them."""
        flags = ["--upgrade", "--force-reinstall", "--no-deps"]
        others = [path for path in packages if not self._inspections[path].unpacked]
        with_base = [str(path) for path in others if not self._inspections[path].isolated]
        isolated = [str(path) for path in others if self._inspections[path].isolated]
        # Built by the base's setuptools, which works offline.
        if with_base and not await self._process.uv(self.python, with_base):
            await self._process.pip(self.python, [*flags, "--no-build-isolation", *with_base])
        if isolated:
            await self._process.pip(self.python, [*flags, *isolated])

    async def install_dependencies(self, needs: _Needs) -> None:
        """Install dependencies that the base environment lacks, or all if the packages bring a framework."""
        if needs.lacking:
            await self._process.pip(self.python, needs.lacking)
        if brings_framework(self._own()):
            program = [str(self.python), "-I", "-S", "-c", _WITHOUT_BASE, str(self._base_file())]
            code, output = await self._process.run_as_user(program)
            if code:
                raise StagingFailed(Reason.STAGING_FAILED, error_excerpt(output))
            if lacking := (await self.needs()).lacking:
                await self._process.pip(self.python, lacking)

    def _own(self) -> list[str]:
        return [_distribution(path) for path in self._site_packages().glob("*.dist-info")]

    async def needs(self) -> _Needs:
        """Read what the packages that are installed for the run need. Raises StagingFailed."""
        program = Path(dependencies.__file__).read_text(encoding="utf-8")
        libraries = f"{pip_directory()}/_vendor"
        command = [str(self.python), "-I", "-c", program, str(self._site_packages()), libraries]
        code, output = await self._process.run_as_user(command)
        if code == 0:  # a .pth file of the packages may have ended the interpreter, or have printed something
            with contextlib.suppress(ValueError, TypeError, KeyError):
                found = json.loads(output.rstrip().rpartition("\n")[2])
                packages = [[str(text) for text in package] for package in found["packages"]]
                if all(packages):
                    return _Needs([str(requirement) for requirement in found["lacking"]], packages)
        raise StagingFailed(
            Reason.PACKAGES_FAILED, f"The metadata of the installed packages cannot be read: {error_excerpt(output)}"
        )

    def _base_file(self) -> Path:
        return self._site_packages() / kept_environments.BASE_FILE

    def _site_packages(self) -> Path:
        return next((self._venv / "lib").glob("python*/site-packages"))


def _distribution(path: Path) -> str:
    """The name of a package, out of that of its file or directory."""
    return path.name.partition("-")[0].lower()


def base_pth(site_packages: Sequence[str]) -> str:
    """A .pth file that adds these directories as `site` does, with their .pth files, for editable installs."""
    return "".join(f"import site; site.addsitedir({directory!r})\n" for directory in site_packages)
