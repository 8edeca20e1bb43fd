"""The processes that make a run's environment: the installer, and what it starts."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from trainyard_agent.host import environment as job_environment
from trainyard_agent.host import process_tags, unix_users
from trainyard_agent.host.job_users import JobUsers
from trainyard_agent.installer.output import error_excerpt, events, without_credentials
from trainyard_agent.installer.patience import PATIENCE_S
from trainyard_agent.runtimes import as_user, installing
from trainyard_agent.staging import installer_archive, uv_program
from trainyard_agent.staging.base import StagingFailed
from trainyard_agent.staging.install_secrets import NO_SECRETS, InstallSecrets
from trainyard_protocol.states import Reason

_TAG = "staging"
_PROCESSES = 1024  # of one installation, where its run has a user of its own
_DRAIN_S = 5.0  # for a pipe to be closed whose writers were killed
_KEPT_OUTPUT = 1 << 20  # bytes of a command's output, at its beginning and again at its end


def kill_orphaned_installers(root: Path, users: JobUsers) -> None:
    """Kill the installers of an agent that was killed."""
    for directory in root.iterdir() if root.exists() else ():
        process_tags.kill_tagged(directory.name, _TAG, user=users.of(directory.name))


class InstallerProcess:
    """Runs the commands of one run's installation, in its directory. `user`: the run's, None: the agent's; `report`
    gets its activities; `secrets`: those of the job for it; `patience_s`: how long an index that is away is waited
    for."""

    def __init__(
        self,
        run_id: str,
        directory: Path,
        user: int | None,
        report: Callable[[str], None] = lambda _: None,
        secrets: InstallSecrets = NO_SECRETS,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._run_id = run_id
        self._directory = directory
        self._user = user
        self._report = report
        self._secrets = secrets
        self._patience_s = patience_s
        self.notes: list[str] = []
        """Sentences on what was installed, for the job's log."""

    async def install(self, base: str, python: Path, plan: Mapping[str, object], umask: int = -1) -> list[list[str]]:
        """Install into the environment of `python`, which the interpreter `base` has made, by a plan of
        `installer.installation`. Returns name, version and requirements of the packages that were installed themselves.
        Raises StagingFailed."""
        program = self._directory / "installer.pyz"
        installer_archive.write(program)
        temporary = self._directory / "tmp"
        temporary.mkdir(mode=0o700, exist_ok=True)
        whole = {
            "python": str(python),
            "uv": uv_program.for_run(self._directory, self._user),
            # The agent's pip, with the environment's Python: other users may be unable to start the agent's. What pip's
            # option --python starts, without starting pip twice. Started as a directory, pip would take the packages of
            # the agent's Python beside it for installed.
            "pip": [str(python), f"{pip_directory()}/__pip-runner__.py"],
            "libraries": f"{pip_directory()}/_vendor",
            "temporary": str(temporary),
            "cache": "" if self._user is None else str(temporary / "uv-cache"),
            "secrets": dict(self._secrets.referred),
            "concealed": sorted(self._secrets.settings),
            "patience_s": self._patience_s,
            **plan,
        }
        command = [base, "-I", str(program), "-"]
        code, output = await self.run_as_user(command, umask, json.dumps(whole).encode())
        reported = list(events(output))
        self.notes += installing.notes(output)
        if code:
            raise StagingFailed(*installing.failure(code, output))
        found = [event["packages"] for event in reported if "packages" in event]
        if not plan.get("own"):
            return []
        if not found:
            message = f"The installed packages cannot be read: {error_excerpt(output)}"
            raise StagingFailed(Reason.PACKAGES_FAILED, message)
        return _lists(found[-1])

    async def run_as_user(self, command: Sequence[str], umask: int = -1, content: bytes = b"") -> tuple[int, str]:
        """Run a command that runs what the job brought, as the run's user if it has one."""
        if self._user is not None:
            command = as_user.command(self._user, _PROCESSES, command)
        return await self.run(command, umask, content)

    async def run(self, command: Sequence[str], umask: int = -1, content: bytes = b"") -> tuple[int, str]:
        """Run a command, with this content as its stdin. Returns its exit status and output, without secrets.
        Cancelled: all its processes are killed."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self._directory,
            env=_environment(os.environ, self._run_id, self._directory, self._user, self._secrets),
            start_new_session=True,
            umask=umask if self._user is None else 0o022,
        )
        assert process.stdin is not None
        try:
            with suppress(ConnectionError):  # it has ended
                process.stdin.write(content)
                process.stdin.close()
            output = await bounded(process.stdout, self._pass_on)
            await process.wait()
        except asyncio.CancelledError:
            await asyncio.to_thread(self._kill)
            with suppress(TimeoutError):  # a process without our tag, of the agent's user, may have the pipe
                await asyncio.wait_for(bounded(process.stdout), _DRAIN_S)
            await process.wait()
            raise
        text = self._secrets.mask.text(without_credentials(output.decode("utf-8", "replace")))
        with (self._directory / "install.log").open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n{text}")
        return process.returncode or 0, text

    def _pass_on(self, line: bytes) -> None:
        """Report an activity of the installer."""
        if activity := installing.last_activity(line.decode("utf-8", "replace"), self._secrets.mask):
            self._report(activity)

    def _kill(self) -> None:
        process_tags.kill_tagged(self._run_id, _TAG, user=self._user)
        if self._user is not None:
            unix_users.kill_all(self._user)


async def bounded(stream: asyncio.StreamReader | None, each_line: Callable[[bytes], None] = lambda _: None) -> bytes:
    """All that is read if it is short, else its beginning and its end. `each_line` gets the lines that are not long."""
    first, last, line = b"", b"", b""
    while stream is not None and (block := await stream.read(_KEPT_OUTPUT)):
        room = _KEPT_OUTPUT - len(first)
        first, last = first + block[:room], (last + block[room:])[-_KEPT_OUTPUT:]
        *lines, line = (line + block).split(b"\n")
        line = line[-_KEPT_OUTPUT:]
        for whole in lines:
            each_line(whole)
    return first + last


def pip_directory() -> str:
    """The directory of the agent's pip, which is a program as well."""
    spec = find_spec("pip")
    if spec is None or spec.origin is None:
        raise StagingFailed(Reason.STAGING_FAILED, f"pip is not installed beside the agent ({sys.executable}).")
    return str(Path(spec.origin).parent)


def _lists(reported: object) -> list[list[str]]:
    """The packages that the installer reported, whatever has spoken for it."""
    rows = reported if isinstance(reported, list) else []
    return [[str(text) for text in row] for row in rows if isinstance(row, list) and len(row) > 1]


def _environment(
    inherited: Mapping[str, str], run_id: str, directory: Path, user: int | None, secrets: InstallSecrets
) -> dict[str, str]:
    """The installer's environment: a part of the agent's, because it runs the setup.py of packages."""
    temporary = directory / "tmp"
    return {
        **job_environment.of_installer(inherited, user, temporary),
        **secrets.settings,
        "TMPDIR": str(temporary),
        **process_tags.tag(run_id, _TAG, directory.parent.parent),
    }
