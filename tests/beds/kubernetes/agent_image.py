"""Images for the bed: Debian with python3, and what `trainyard[agent]` or the whole project installs."""

import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType

import trainyard_agent
import trainyard_cli
import trainyard_programs
import trainyard_protocol
import trainyard_server
import trainyard_storage
from beds import debian
from beds.installed.installed import requirements, top_levels
from beds.kubernetes.images import Image
from trainyard_protocol.job.machines import configs_dir

AGENT_IMAGE = "docker.io/library/trainyard-test-agent:bed"
SITE_IMAGE = "docker.io/library/trainyard-test-site:bed"

_SITE = "usr/local/lib/python3.11/dist-packages"


def agent_image() -> AbstractContextManager[Image]:
    return _image(AGENT_IMAGE, (trainyard_agent, trainyard_protocol), "agent")


def site_image() -> AbstractContextManager[Image]:
    """Server, agent and command line in one."""
    ours = (trainyard_agent, trainyard_cli, trainyard_programs, trainyard_protocol, trainyard_server, trainyard_storage)
    return _image(SITE_IMAGE, ours, "server", "agent")


@contextmanager
def _image(name: str, packages: Sequence[ModuleType], *extras: str) -> Iterator[Image]:
    with debian.base_tar() as base, tempfile.TemporaryFile() as added:
        with tarfile.open(fileobj=added, mode="w") as tar:
            for file, path in _files(packages, extras).items():
                tar.add(path, f"{_SITE}/{file}", filter=_without_bytecode)
        yield Image(name, [base, added], {"Env": ["PATH=/usr/bin:/bin"]})


def _files(packages: Sequence[ModuleType], extras: Sequence[str]) -> dict[str, Path]:
    found = {package.__name__: Path(str(package.__file__)).parent for package in packages}
    found["trainyard_protocol/configs"] = configs_dir()
    own = metadata.distribution("trainyard")
    for distribution in [needed for extra in extras for needed in requirements(own, extra)]:
        found |= top_levels(distribution)
    return found


def _without_bytecode(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry
