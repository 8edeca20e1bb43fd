"""The environment below the packages of a run that is a process: the agent's own, or that of its runtime version.

A runtime version whose framework the agent's Python has not gets an environment with the `packages` of its line in the
runtimes file. It is made for the first run that needs it, and is there for all that follow.
"""

import asyncio
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from trainyard_agent.host.files import read_json, remove_tree, write_json
from trainyard_agent.installer.patience import PATIENCE_S
from trainyard_agent.staging.base import StagingFailed
from trainyard_agent.staging.environments.installer_process import InstallerProcess
from trainyard_protocol.job.runtimes import RuntimeImage, Runtimes, unknown_version
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder

_FIND = """
import importlib.util, sys
print(sys.version.split()[0])
sys.exit(importlib.util.find_spec(sys.argv[1]) is None)
"""
_REVISION = 2  # of how they are made: those of 1 lack packages that the agent's Python had
_OPEN_TO_ALL = 0o022
"""The umask: runs may have users of their own, who read it."""


class BaseEnvironments:
    """The environments of runtime versions, below `root`. `python` is the agent's base interpreter."""

    def __init__(
        self, root: Path, python: str, runtimes: Runtimes | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        self._root = root
        self._patience_s = patience_s
        self._python = python
        self._runtimes = runtimes
        self._locks: dict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def python_of(self, order: RunOrder, directory: Path, report: Callable[[str], None]) -> str:
        """The base interpreter of a run, which is prepared in the directory. Raises StagingFailed."""
        version = order.training_input.runtime_version
        if self._runtimes is None:
            return self._python
        if problem := unknown_version(version, self._runtimes.offered):
            raise StagingFailed(Reason.STAGING_FAILED, problem)
        image = self._runtimes.own_image(version, any(replica.has_gpus for replica in order.replicas))
        if image is None or not image.framework or not image.packages:
            return self._python
        process = InstallerProcess(order.run_id, directory, None, report, patience_s=self._patience_s)
        missing, output = await process.run([self._python, "-c", _FIND, image.framework])
        if not missing:
            return self._python
        interpreter = (output.splitlines() or ["?"])[0]
        environment = self._root / _key(image, interpreter)
        async with self._locks[environment]:
            if await asyncio.to_thread(read_json, environment / "ready.json") is None:
                report(f"making the environment of its runtimeVersion {version}, once: {image.packages[0]}")
                try:
                    await self._make(environment, image, process)
                except StagingFailed as failed:
                    is_away = failed.staging.reason is Reason.GIVEN_BACK
                    raise StagingFailed(
                        Reason.GIVEN_BACK if is_away else Reason.STAGING_FAILED,
                        f"The environment of its runtimeVersion {version} cannot be made with Python {interpreter}: "
                        f"{failed.staging.message} Start the agent with a --python that has {image.framework}, or "
                        "run the job without a runtimeVersion.",
                    ) from failed
        return str(environment / "bin" / "python")

    async def _make(self, environment: Path, image: RuntimeImage, process: InstallerProcess) -> None:
        await asyncio.to_thread(remove_tree, environment)  # of an agent that was killed meanwhile
        await asyncio.to_thread(self._root.mkdir, 0o755, exist_ok=True)
        make = [self._python, "-m", "venv", "--without-pip", str(environment)]
        code, output = await process.run(make, _OPEN_TO_ALL)
        if code:
            raise StagingFailed(Reason.STAGING_FAILED, output)
        # setuptools: what the packages of jobs are built with.
        python = environment / "bin" / "python"
        plan = {"dependencies": True, "requirements": ["setuptools", "wheel", *image.packages]}
        await process.install(self._python, python, plan, _OPEN_TO_ALL)
        await asyncio.to_thread(write_json, environment / "ready.json", {"packages": image.packages})


def _key(image: RuntimeImage, interpreter: str) -> str:
    digest = hashlib.sha256(json.dumps([image.packages, interpreter, _REVISION]).encode()).hexdigest()
    return f"{image.framework}-{digest[:16]}"
