"""The operator's file of mounts: directories that jobs may ask for by name, and where the caches of projects are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.config.yaml_file import SiteEntry, entry_problem, line_of, read_yaml_file
from trainyard_protocol.job.keys.mounts import NAME_RULE, is_mount_name

CACHE = "cache"
"""The name of a project's cache beside mounts, which no mount has."""

MAX_ENTRIES = 100
"""Mounts of one file."""

MAX_PROJECTS = 1000
"""Projects of one entry."""


def _directory(value: str) -> str:
    path = PurePosixPath(value)
    if not path.is_absolute() or str(path) != value or ".." in path.parts or len(value) > 4096 or value == "/":
        raise ValueError("must be an absolute path such as /data/imagenet")
    return value


def _below(value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or (value and str(path) != value) or ".." in path.parts or len(value) > 4096:
        raise ValueError("must be a path in the volume such as imagenet/v2")
    return value


def _name(value: str) -> str:
    if not is_mount_name(value):
        raise ValueError(f"a name is {NAME_RULE}")
    if value == CACHE:
        raise ValueError("this is the name of the caches of projects")
    return value


_Directory = Annotated[str, AfterValidator(_directory)]
_Claim = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
_Project = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$")]


class SiteDirectory(SiteEntry):
    """A directory of the site: `path` on the agent's machine, which the nodes of a Slurm cluster have too; for pods a
    directory of a volume, named by its claim, or of the nodes. `projects`: those that may use it; empty: all."""

    path: _Directory | None = None
    persistent_volume_claim: _Claim | None = None
    sub_path: Annotated[str, AfterValidator(_below)] = ""
    host_path: _Directory | None = None
    projects: Annotated[list[_Project], Field(max_length=MAX_PROJECTS)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        places = [self.path, self.persistent_volume_claim, self.host_path]
        if sum(place is not None for place in places) != 1:
            raise ValueError("it needs one of path, persistentVolumeClaim and hostPath")
        if self.sub_path and self.persistent_volume_claim is None:
            raise ValueError("subPath goes with persistentVolumeClaim")
        return self

    @property
    def is_of_pods(self) -> bool:
        return self.path is None

    @property
    def source(self) -> str:
        """The path of the machine or of the nodes, or CLAIM/PATH."""
        if self.persistent_volume_claim is None:
            return self.path or self.host_path or ""
        return "/".join(filter(None, (self.persistent_volume_claim, self.sub_path)))


class SiteMount(SiteDirectory):
    """A directory that jobs may mount."""

    name: Annotated[str, AfterValidator(_name)]
    read_only: bool = True


class _MountsFile(SiteEntry):
    mounts: Annotated[list[SiteMount], Field(max_length=MAX_ENTRIES)] = Field(default_factory=list)
    caches: SiteDirectory | None = None


@dataclass(frozen=True)
class SiteMounts:
    """The file: its mounts by name, and the directory of caches. `positions` are FILE:LINE of each, by name."""

    mounts: Mapping[str, SiteMount] = field(default_factory=lambda: MappingProxyType({}))
    caches: SiteDirectory | None = None
    positions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def entries(self) -> Iterator[tuple[str, SiteDirectory]]:
        """Every directory with its name."""
        yield from self.mounts.items()
        if self.caches is not None:
            yield CACHE, self.caches


def load_mounts(path: Path) -> SiteMounts:
    """Read the file. Raises InvalidArgument with file, line and entry."""
    text, data = read_yaml_file(path)
    try:
        file = _MountsFile.model_validate(data)
    except ValidationError as error:
        raise entry_problem(path, text, _MountsFile, error) from error
    mounts: dict[str, SiteMount] = {}
    positions = {CACHE: f"{path}:{line_of(text, ('caches',))}"}
    for number, mount in enumerate(file.mounts):
        position = f"{path}:{line_of(text, ('mounts', number))}"
        if mount.name in mounts:
            raise InvalidArgument(f"{position}: mounts.{number}: there is a mount {mount.name} already.")
        mounts[mount.name], positions[mount.name] = mount, position
    return SiteMounts(mounts, file.caches, positions)
