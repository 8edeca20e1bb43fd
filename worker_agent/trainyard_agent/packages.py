"""Each run's own Python environment, with the packages of its job.

`environments/RUN/` of the state directory holds what was fetched and a virtual environment. It sees all
that the base environment has (the interpreter that the agent runs under, or --python), so that a trainer
finds its framework, and what the job's packages bring lies over that. Installing is done by pip alone, as
the real service did: first the packages themselves, whatever is there already, then what they depend on.
"""

import asyncio
import json
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from trainyard_agent import archives, gcs, marks
from trainyard_agent.control_plane import ChecksumMismatch, ControlPlane
from trainyard_agent.files import read_json, remove_tree, write_json
from trainyard_agent.staging import Staging
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.states import Reason
from trainyard_protocol.sync import RunOrder
from trainyard_protocol.training_input import parse_training_input

_MARK = "staging"
_STAGED = re.compile(r"staging://([0-9a-f]{64})/([^/]+)")
_GCS = re.compile(r"gs://([^/]+)/(.*?([^/]+))")
_TOLD_LINES = 8
_TOLD_CHARACTERS = 2000
_NOT_TELLING = re.compile(
    r"(note:|hint:|warning:|\[notice\]|\[end of output\]|deprecation:"
    r"|looking in (indexes|links):|processing |requirement already satisfied)",
    re.IGNORECASE,
)
_COMPLAINT = re.compile(r"error:", re.IGNORECASE)
_SITE_PACKAGES = """
import json, site, sysconfig
here = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
print(json.dumps(list(dict.fromkeys(here + user))))
"""

_log = logging.getLogger(__name__)


class _Failed(Exception):
    """Why a run cannot be prepared."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.staging = Staging("failed", reason=reason, message=message)


def end_leftovers(root: Path) -> None:
    """End what an agent that was killed left running: its pip. Nothing there: nothing."""
    for directory in root.iterdir() if root.exists() else ():
        marks.kill_marked(directory.name, _MARK)


class PackageStager:
    """Keeps `staging.Stager`. Several runs are prepared side by side."""

    def __init__(
        self,
        root: Path,
        control_plane: ControlPlane,
        python: str,
        replica_environment: Mapping[str, str],
    ) -> None:
        self._root = root
        self._control_plane = control_plane
        self._base = python
        self._emulator = replica_environment.get("STORAGE_EMULATOR_HOST", "")
        self._status: dict[str, Staging] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        end_leftovers(root)

    def begin(self, order: RunOrder) -> None:
        if order.run_id in self._status:
            return
        self._status[order.run_id] = Staging("preparing")
        self._tasks[order.run_id] = asyncio.create_task(self._prepare(order))

    def status(self) -> dict[str, Staging]:
        left = {path.name for path in self._root.iterdir()} - self._status.keys()
        return {**dict.fromkeys(left, Staging("left")), **self._status}

    async def discard(self, run_id: str) -> None:
        await self._end(run_id)
        self._status.pop(run_id, None)
        await asyncio.to_thread(remove_tree, self._root / run_id)

    async def close(self) -> None:
        for run_id in list(self._tasks):
            await self._end(run_id)

    async def _end(self, run_id: str) -> None:
        task = self._tasks.pop(run_id, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _prepare(self, order: RunOrder) -> None:
        run_id = order.run_id
        try:
            python = await self._environment(order)
            self._status[run_id] = Staging("ready", python=python)
        except _Failed as failure:
            self._status[run_id] = failure.staging
        except OSError as error:
            message = f"Its environment could not be made: {error}."
            self._status[run_id] = Staging("failed", reason=Reason.STAGING_FAILED, message=message)
        except Exception as error:  # noqa: BLE001 - told to the user rather than lost in a task
            _log.exception("preparing run %s failed", run_id)
            message = f"Its environment could not be made: {type(error).__name__}: {error}."
            self._status[run_id] = Staging("failed", reason=Reason.STAGING_FAILED, message=message)

    async def _environment(self, order: RunOrder) -> str:
        """Everything from the first download to the interpreter that the replicas are started with."""
        directory = self._root / order.run_id
        ready = directory / "ready.json"
        known = read_json(ready)
        if known is not None:
            return str(known["python"])
        await asyncio.to_thread(remove_tree, directory)
        (directory / "tmp").mkdir(mode=0o700, parents=True)
        uris = parse_training_input(order.training_input).package_uris
        packages = [await self._fetch(order.run_id, uri, directory / str(n)) for n, uri in enumerate(uris)]
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

    async def _fetch(self, run_id: str, uri: str, directory: Path) -> Path:
        staged, stored = _STAGED.fullmatch(uri), _GCS.fullmatch(uri)
        name = staged[2] if staged else stored[3] if stored else ""
        if not archives.is_package_name(name):
            raise _Failed(
                Reason.PACKAGES_FAILED,
                f"{uri} is no package: packageUris name files that end in .tar.gz, .tgz, .zip or .whl, "
                "on gs:// or staged by `jobs submit`.",
            )
        self._say(run_id, f"fetching {name}")
        directory.mkdir(mode=0o700)
        target = directory / name
        try:
            if staged:
                await self._control_plane.download(staged[1], name, target)
            elif stored:
                await asyncio.to_thread(gcs.download, stored[1], stored[2], target, self._emulator)
        except gcs.NoSuchObject as error:
            raise _Failed(Reason.PACKAGES_FAILED, f"{error}.") from error
        except gcs.DownloadFailed as error:
            raise _Failed(Reason.STAGING_FAILED, f"{error}.") from error
        except (TrainyardError, ChecksumMismatch) as error:
            raise _Failed(Reason.STAGING_FAILED, f"{uri}: {error}") from error
        return target

    def _say(self, run_id: str, activity: str) -> None:
        self._status[run_id] = Staging("preparing", activity=activity)


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
            raise _Failed(Reason.STAGING_FAILED, trouble + telling(output))
        code, output = await self._run([self._base, "-c", _SITE_PACKAGES])
        if code:
            raise _Failed(Reason.STAGING_FAILED, trouble + telling(output))
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
            raise _Failed(Reason.PACKAGES_FAILED, telling(output))

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


def telling(output: str) -> str:
    """The lines of pip's output that say what went wrong: from its first complaint on, or else the last ones."""
    lines = [line.strip() for line in output.splitlines()]
    told = [line for line in lines if line and not _NOT_TELLING.match(line)]
    complaint = next((n for n, line in enumerate(told) if _COMPLAINT.match(line)), 0)
    return "\n".join(told[complaint:][-_TOLD_LINES:])[-_TOLD_CHARACTERS:] or "pip gave no reason."


def _environment(inherited: Mapping[str, str], run_id: str, directory: Path) -> dict[str, str]:
    """pip runs code of the user's (setup.py): it gets the user's pip settings, and nothing of ours."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("TRAINYARD_", "PYTHON", "VIRTUAL_ENV"))
    }
    return {**kept, "TMPDIR": str(directory / "tmp"), **marks.mark(run_id, _MARK)}
