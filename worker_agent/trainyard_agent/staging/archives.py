"""Package archives: their names, and their inspection in a process of its own."""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainyard_agent.staging import archive_check
from trainyard_agent.staging.base import StagingFailed
from trainyard_protocol.states import Reason

CPU_S = 30
"""CPU seconds for the inspection of one archive."""

_PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+!-]*\.(tar\.gz|tgz|zip|whl)")


def is_package_name(name: str) -> bool:
    """Whether it is a plain file name with a suffix that pip installs."""
    return _PACKAGE_NAME.fullmatch(name) is not None


async def isolated(packages: Sequence[Path]) -> list[Path]:
    """The packages that need build tools of their own. Raises StagingFailed for one that pip must not open."""
    return [package for package in packages if await needs_isolation(package)]


async def needs_isolation(package: Path) -> bool:
    """Whether pip must fetch build tools other than setuptools.

    Raises StagingFailed for an archive that pip must not open. Cancelled: the inspecting process is killed.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", archive_check.__file__, str(package), str(CPU_S)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    result = {"refused": _exceeded()} if process.returncode else json.loads(output)
    if result["refused"]:
        raise StagingFailed(
            Reason.PACKAGES_FAILED,
            f"The package {package.name} is refused: {result['refused']}. Build it anew from its source, "
            "as `jobs submit --package-path` does.",
        )
    return bool(result["isolated"])


def _exceeded() -> str:
    return f"its archive cannot be read in {CPU_S} s and {archive_check.MAX_MEMORY >> 20} MiB of memory"
