"""The processes that make a run's environment: pip, and what it starts."""

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from trainyard_agent.host import environment as job_environment
from trainyard_agent.host import process_tags, unix_users
from trainyard_agent.host.job_users import JobUsers
from trainyard_agent.runtimes import as_user
from trainyard_agent.runtimes.pip_output import error_excerpt
from trainyard_agent.staging.base import StagingFailed
from trainyard_protocol.states import Reason

_TAG = "staging"
_PROCESSES = 1024  # of one installation, where its run has a user of its own
_DRAIN_S = 5.0  # for a pipe to be closed whose writers were killed
_KEPT_OUTPUT = 1 << 20  # bytes of a command's output, at its beginning and again at its end


def kill_orphaned_installers(root: Path, users: JobUsers) -> None:
    """Kill the pip processes of an agent that was killed."""
    for directory in root.iterdir() if root.exists() else ():
        process_tags.kill_tagged(directory.name, _TAG, user=users.of(directory.name))


class InstallerProcess:
    """Runs the commands of one run's installation, in its directory. `user`: the run's, None: the agent's."""

    def __init__(self, run_id: str, directory: Path, user: int | None) -> None:
        self._run_id = run_id
        self._directory = directory
        self._user = user

    async def pip(self, python: Path, arguments: Sequence[str], umask: int = -1) -> None:
        """Install into the environment of that interpreter. Raises StagingFailed."""
        # The agent's pip, with the environment's Python: other users may be unable to start the agent's. What pip's
        # option --python starts, without starting pip twice. Started as a directory, pip would take the packages of the
        # agent's Python beside it for installed.
        pip = [str(python), f"{pip_directory()}/__pip-runner__.py", "install", "--no-input"]
        quiet = ["--disable-pip-version-check", "--no-warn-script-location", "--root-user-action=ignore"]
        # For a warning that nobody sees, pip would read the metadata of all that is installed in the base.
        quiet.append("--no-warn-conflicts")
        code, output = await self.run_as_user([*pip, *quiet, *arguments], umask)
        if code:
            raise StagingFailed(Reason.PACKAGES_FAILED, error_excerpt(output))

    async def uv(self, python: Path, packages: Sequence[str]) -> bool:
        """Install these files, without their dependencies and without an index, by uv, which is installed with the
        agent. False: not done, and pip says why. uv does not know the settings of pip, and is not started by users of
        runs."""
        path = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{Path(sys.executable).parent}"
        program = shutil.which("uv", path=path) if self._user is None else None
        if program is None:
            return False
        install = [program, "pip", "install", "--python", str(python), "--no-config", "--no-cache", "--no-index"]
        code, _ = await self.run(
            [*install, "--no-deps", "--no-build-isolation", "--reinstall", "--compile-bytecode", *packages]
        )
        return code == 0

    async def run_as_user(self, command: Sequence[str], umask: int = -1) -> tuple[int, str]:
        """Run a command that runs what the job brought, as the run's user if it has one."""
        if self._user is not None:
            command = as_user.command(self._user, _PROCESSES, command)
        return await self.run(command, umask)

    async def run(self, command: Sequence[str], umask: int = -1) -> tuple[int, str]:
        """Run a command. Returns its exit status and output. Cancelled: all its processes are killed."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self._directory,
            env=_environment(os.environ, self._run_id, self._directory, self._user),
            start_new_session=True,
            umask=umask if self._user is None else 0o022,
        )
        try:
            output = await bounded(process.stdout)
            await process.wait()
        except asyncio.CancelledError:
            await asyncio.to_thread(self._kill)
            with suppress(TimeoutError):  # a process without our tag, of the agent's user, may have the pipe
                await asyncio.wait_for(bounded(process.stdout), _DRAIN_S)
            await process.wait()
            raise
        text = output.decode("utf-8", "replace")
        with (self._directory / "install.log").open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n{text}")
        return process.returncode or 0, text

    def _kill(self) -> None:
        process_tags.kill_tagged(self._run_id, _TAG, user=self._user)
        if self._user is not None:
            unix_users.kill_all(self._user)


async def bounded(stream: asyncio.StreamReader | None) -> bytes:
    """All that is read if it is short, else its beginning and its end."""
    first, last = b"", b""
    while stream is not None and (block := await stream.read(_KEPT_OUTPUT)):
        room = _KEPT_OUTPUT - len(first)
        first, last = first + block[:room], (last + block[room:])[-_KEPT_OUTPUT:]
    return first + last


def pip_directory() -> str:
    """The directory of the agent's pip, which is a program as well."""
    spec = find_spec("pip")
    if spec is None or spec.origin is None:
        raise StagingFailed(Reason.STAGING_FAILED, f"pip is not installed beside the agent ({sys.executable}).")
    return str(Path(spec.origin).parent)


def _environment(inherited: Mapping[str, str], run_id: str, directory: Path, user: int | None) -> dict[str, str]:
    """pip's environment: a part of the agent's, because pip runs the setup.py of packages."""
    temporary = directory / "tmp"
    return {
        **job_environment.of_installer(inherited, user, temporary),
        "TMPDIR": str(temporary),
        **process_tags.tag(run_id, _TAG, directory.parent.parent),
    }
