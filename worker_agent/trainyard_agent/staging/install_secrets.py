"""Secrets of a job that its installation gets: the settings of pip and uv, such as an index with a password, and what
its requirement files name as ${NAME}. Nothing else of the job's secrets is there while packages run code."""

import asyncio
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainyard_agent.installer.manifest import PROGRAM
from trainyard_agent.runtimes.masking import Mask
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging.base import Away, StagingFailed
from trainyard_protocol.errors import FailedPrecondition, TrainyardError, Unavailable
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder

_SETTINGS = ("PIP_", "UV_")
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class InstallSecrets:
    """Variables by name. `settings` are for the tools; `referred` are named by the program's files, and the installer
    gives them to the tools if requirement files are among these. `mask` hides all of them."""

    settings: Mapping[str, str] = field(default_factory=dict)
    referred: Mapping[str, str] = field(default_factory=dict)
    mask: Mask = field(default_factory=Mask)

    @property
    def values(self) -> dict[str, str]:
        """All of them, which an environment depends on."""
        return {**self.settings, **self.referred}


NO_SECRETS = InstallSecrets()


async def names(order: RunOrder, packages: Sequence[Path]) -> tuple[set[str], set[str]]:
    """The variables of `settings` and those that are `referred` of a run with these packages, which were inspected."""
    variables = {ref.variable for ref in order.training_input.secrets if not ref.file}
    settings = {name for name in variables if name.startswith(_SETTINGS)}
    return settings, await asyncio.to_thread(_referred, variables - settings, packages)


async def get(order: RunOrder, packages: Sequence[Path], control_plane: ServerClient) -> InstallSecrets:
    """Their values. Raises StagingFailed."""
    settings, referred = await names(order, packages)
    if not settings and not referred:
        return NO_SECRETS
    try:
        values = (await control_plane.secrets(order.run_id)).values
    except FailedPrecondition as error:
        raise StagingFailed(Reason.SECRETS_FAILED, error.message) from error
    except Unavailable as error:
        raise Away(f"Its secrets: {error}") from error
    except TrainyardError as error:
        raise StagingFailed(Reason.STAGING_FAILED, f"Its secrets: {error}") from error
    variables = {ref.variable: ref.name for ref in order.training_input.secrets if not ref.file}
    of = {name: values[variables[name]].rstrip("\r\n") for name in (*settings, *referred)}
    return InstallSecrets(
        {name: of[name] for name in settings}, {name: of[name] for name in referred}, Mask(of.values())
    )


def _referred(names: Collection[str], packages: Sequence[Path]) -> set[str]:
    """The names that a program's files have as ${NAME}, whichever file it is."""
    found: set[str] = set()
    for package in packages if names else ():
        if package.name.startswith(f"{PROGRAM}-") and package.suffix == ".whl":
            found |= _named(names, package)
    return found


def _named(names: Collection[str], package: Path) -> set[str]:
    words = {name: f"${{{name}}}".encode() for name in names}
    longest = max(map(len, words.values()))
    found: set[str] = set()
    try:
        with zipfile.ZipFile(package) as archive, archive.open(f"{PROGRAM}/files.tar") as file:
            rest = b""
            while block := file.read(_BLOCK):
                found |= {name for name, word in words.items() if word in rest + block}
                rest = block[-longest:]
    except (KeyError, zipfile.BadZipFile):
        return set()  # no program of `jobs submit`
    return found
