"""Runtimes of package jobs by runtimeVersion: container images, and packages for replicas that run as processes.

The table is `configs/runtimes.yaml`, which a site can extend with a file of its own.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from trainyard_protocol.errors import InvalidArgument, Violation, quoted
from trainyard_protocol.fields import did_you_mean
from trainyard_protocol.job.config.yaml_file import SHIPPED, SITE, SiteEntry, entry_problem, read_yaml_file
from trainyard_protocol.job.machines import configs_dir

PackageJobs = Literal["process", "container"]

ANY_VERSION = "*"
"""Key of the default entry, for jobs without a version, and in a site's file also for versions not in the table."""


class RuntimeImage(SiteEntry):
    """Runtime image. `dockerfile`: the absolute path of what `trainyard runtimes build` builds, "" for an image from a
    registry; `base_image`: its default base; `packages`: what it installs, without a framework besides the trainer's
    packages. `framework`: the module that processes find in the agent's Python, or else in an environment with the
    packages; "": they have the agent's Python in any case. `provides` is the framework in words."""

    image: str = Field(min_length=1)
    dockerfile: str = ""
    base_image: str = ""
    packages: list[str] = Field(default_factory=list)
    framework: str = ""
    provides: str = ""


class RuntimeVersion(SiteEntry):
    """Names of the images for replicas without and with GPUs. `gpu` defaults to `cpu`. `was` is the framework of
    that version, where something else stands in for it, `note` a sentence about it. A key of the file has one
    version or several."""

    cpu: str
    gpu: str = ""
    was: str = ""
    note: str = ""


class _RuntimesFile(SiteEntry):
    images: dict[str, RuntimeImage] = Field(default_factory=dict)
    versions: dict[str, RuntimeVersion] = Field(default_factory=dict)
    package_jobs: PackageJobs | None = None


@dataclass(frozen=True)
class Runtimes:
    """The table: `images` by short name, `versions` by runtime version. `package_jobs` is how package jobs run on a
    machine that has both: as processes or in containers. `runs_any`: the site has said what any other version
    runs in."""

    images: Mapping[str, RuntimeImage]
    versions: Mapping[str, RuntimeVersion]
    package_jobs: PackageJobs = "process"
    runs_any: bool = False

    @property
    def offered(self) -> tuple[str, ...]:
        """The versions that jobs may name; with ANY_VERSION they may name others too."""
        return tuple(version for version in self.versions if version != ANY_VERSION or self.runs_any)

    def image_for(self, runtime_version: str, gpus: bool) -> str:
        """The image of a runtime version ("": the job names none). Raises InvalidArgument if it is unknown."""
        if problem := unknown_version(runtime_version, self.offered):
            raise InvalidArgument(problem)
        version = self.versions.get(runtime_version) or self.versions.get(ANY_VERSION)
        if version is None:
            raise InvalidArgument(f"A job needs a runtimeVersion here: {', '.join(self.offered)}.")
        return self.images[version.gpu if gpus and version.gpu else version.cpu].image

    def own_image(self, runtime_version: str, gpus: bool) -> RuntimeImage | None:
        """The image of a version that has a line of its own; None for those of "*", and for jobs without a version."""
        version = self.versions.get(runtime_version) if runtime_version != ANY_VERSION else None
        if version is None:
            return None
        return self.images[version.gpu if gpus and version.gpu else version.cpu]

    def substitution(self, runtime_version: str) -> str:
        """A sentence about what stands in for the framework of a version; "" if it is what it was."""
        version = self.versions.get(runtime_version)
        if version is None or not version.was:
            return ""
        stands_in = self.images[version.cpu].provides or version.cpu
        text = (
            f"runtimeVersion {runtime_version} was {version.was} {runtime_version}, which has no packages for today's "
            f"Python: {stands_in} stands in, unless the agent's own Python has another."
        )
        return f"{text} {version.note}".rstrip()

    def name_of(self, image: str) -> str:
        """The short name of an image; "" if it is none of the table."""
        return next((name for name, entry in self.images.items() if entry.image == image), "")

    def dockerfile_of(self, image: str) -> str:
        """The Dockerfile of an image; "" if it is pulled."""
        return next((entry.dockerfile for entry in self.images.values() if entry.image == image), "")


def load_runtimes(site_file: Path | None = None) -> Runtimes:
    """Load the shipped table, with entries replaced or added by the site's file. One with a line for `*` has its own
    lines alone: it says what every other version runs in.

    Raises InvalidArgument, with file and entry, if the site's file is unreadable or invalid.
    """
    path = configs_dir() / "runtimes.yaml"
    table, runs_any = _read(path, SHIPPED), False
    if site_file is not None:
        site = _read(site_file)
        runs_any = ANY_VERSION in site.versions
        table = _RuntimesFile(
            images={**table.images, **site.images},
            versions={**({} if runs_any else table.versions), **site.versions},
            package_jobs=site.package_jobs or table.package_jobs,
        )
    return replace(_checked(site_file or path, table), runs_any=runs_any)


def unknown_version(runtime_version: str, offered: Collection[str]) -> str:
    """The sentence about a version that is not offered; "" for any other."""
    if not runtime_version or runtime_version in offered or ANY_VERSION in offered:
        return ""
    hint = "" if runtime_version[0].isdecimal() else did_you_mean(runtime_version, offered)
    return (
        f"{quoted(runtime_version)} is not a runtime version of this service. {f'{hint} ' if hint else ''}"
        f"Known: {', '.join(offered)}. A job without one runs in the agent's Python."
    )


def check_version(runtime_version: str, offered: Collection[str]) -> None:
    """Raises InvalidArgument for a version that is not offered."""
    if problem := unknown_version(runtime_version, offered):
        raise InvalidArgument(Violation("runtime_version", problem))


def constraints_file() -> Path:
    """pip constraints file for building runtime images."""
    packaged = configs_dir() / "constraints.txt"
    return packaged if packaged.is_file() else configs_dir().parent / "constraints.txt"


def _checked(path: Path, table: _RuntimesFile) -> Runtimes:
    for version, names in table.versions.items():
        for name in filter(None, (names.cpu, names.gpu)):
            if name not in table.images:
                images = ", ".join(table.images)
                raise InvalidArgument(f"{path}: versions.{version}: unknown image {name!r}; known: {images}.")
    return Runtimes(images=table.images, versions=table.versions, package_jobs=table.package_jobs or "process")


def _read(path: Path, loader: Any = SITE) -> _RuntimesFile:
    text, data = read_yaml_file(path, loader)
    try:
        table = _RuntimesFile.model_validate(data)
    except ValidationError as error:
        raise entry_problem(path, text, _RuntimesFile, error) from error
    return table.model_copy(
        update={
            "versions": {
                entry.strip(): names for versions, names in table.versions.items() for entry in versions.split(",")
            },
            "images": {name: _with_absolute_dockerfile(path, image) for name, image in table.images.items()},
        }
    )


def _with_absolute_dockerfile(path: Path, image: RuntimeImage) -> RuntimeImage:
    if not image.dockerfile:
        return image
    return image.model_copy(update={"dockerfile": str(path.absolute().parent / image.dockerfile)})
