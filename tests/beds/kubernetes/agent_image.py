"""An image of the agent for the bed: Debian with python3, and what `trainyard[agent]` installs."""

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import trainyard_agent
import trainyard_protocol
from beds import debian
from beds.installed.installed import requirements, top_levels
from beds.kubernetes.images import Image
from trainyard_protocol.job.machines import configs_dir

AGENT_IMAGE = "docker.io/library/trainyard-test-agent:bed"

_SITE = "usr/local/lib/python3.11/dist-packages"


@contextmanager
def agent_image() -> Iterator[Image]:
    with debian.base_tar() as base, tempfile.TemporaryFile() as added:
        with tarfile.open(fileobj=added, mode="w") as tar:
            for name, path in _files().items():
                tar.add(path, f"{_SITE}/{name}", filter=_without_bytecode)
        yield Image(AGENT_IMAGE, [base, added], {"Env": ["PATH=/usr/bin:/bin"]})


def _files() -> dict[str, Path]:
    found = {package.__name__: Path(str(package.__file__)).parent for package in (trainyard_agent, trainyard_protocol)}
    found["trainyard_protocol/configs"] = configs_dir()
    for distribution in requirements(metadata.distribution("trainyard"), "agent"):
        found |= top_levels(distribution)
    return found


def _without_bytecode(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry
