"""Package archives: their names, and their inspection in a process of its own."""

import asyncio
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard_agent.runtimes import fork_server
from trainyard_agent.staging import archive_check
from trainyard_agent.staging.base import StagingFailed
from trainyard_protocol.states import Reason

CPU_S = 30
"""CPU seconds for the inspection of one archive."""

_READABLE = 0o022
"""The umask of what is unpacked: the run may have a user of its own."""

_PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+!-]*\.(tar\.gz|tgz|zip|whl)")


def is_package_name(name: str) -> bool:
    """Whether it is a plain file name with a suffix that pip installs."""
    return _PACKAGE_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Inspection:
    """`isolated`: pip must fetch build tools other than setuptools. `unpacked`: its files are where they are imported
    from, and pip has nothing to do but, where it `depends` on others, to install those that are not there. `metadata`:
    the digest of its METADATA, which names these; "" if it is not unpacked."""

    isolated: bool
    unpacked: bool
    depends: bool
    metadata: str


async def isolated(packages: Sequence[Path]) -> list[Path]:
    """The packages that need build tools of their own. Raises StagingFailed for one that pip must not open."""
    return [package for package in packages if (await inspect(package)).isolated]


async def inspect(package: Path, site_packages: Path | None = None) -> Inspection:
    """Read all of a package's archive; with a directory, unpack a plain wheel of pure Python into it.

    Raises StagingFailed for an archive that pip must not open. Cancelled: the inspecting process is killed.
    """
    output = await _output([str(package), str(CPU_S), *([str(site_packages)] if site_packages is not None else [])])
    result = json.loads(output) if output.endswith(b"\n") else {"refused": _exceeded()}
    if refused := result.pop("refused"):
        raise StagingFailed(
            Reason.PACKAGES_FAILED,
            f"The package {package.name} is refused: {refused}. Rebuild it from its source, "
            "as `jobs submit --package-path` does.",
        )
    return Inspection(**result)


async def _output(arguments: Sequence[str]) -> bytes:
    """The output of the inspection. It prints one line, or nothing where it exceeds its limits."""
    ours, its = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        process = fork_server.SHARED.start(archive_check.__name__, arguments, [nothing, its, nothing], _READABLE)
    except OSError as error:
        os.close(ours)
        raise StagingFailed(
            Reason.STAGING_FAILED, f"No process could be started that checks the packages: {error.strerror}."
        ) from error
    finally:
        os.close(its)
        os.close(nothing)
    reading = asyncio.create_task(asyncio.to_thread(_read_all, ours))
    try:
        return await asyncio.shield(reading)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        await asyncio.wait({reading})
        process.close()


def _read_all(pipe: int) -> bytes:
    with os.fdopen(pipe, "rb") as file:
        return file.read()


def _exceeded() -> str:
    return f"its archive cannot be read in {CPU_S} s and {archive_check.MAX_MEMORY >> 20} MiB of memory"
