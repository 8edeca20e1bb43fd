"""Runtime versions: from a package job's runtimeVersion to the container image that it runs in.

The table is data (`configs/runtimes.yaml`); a site lays its own file over it. Process replicas run in the
agent's own Python and ask nothing here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.machines import configs_dir

ANY_VERSION = "*"
"""In the table: every version that has no line of its own, and a job that names none."""


class _Data(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True
    )


class RuntimeImage(_Data):
    """An image of a runtime. `dockerfile` is what `trainyard runtimes build` makes it from (in the table beside
    the file, here its whole path; "" for an image that a registry has), `base_image` what it is built on by
    default, `packages` what is installed besides the packages that every runtime has."""

    image: str = Field(min_length=1)
    dockerfile: str = ""
    base_image: str = ""
    packages: list[str] = []


class RuntimeVersion(_Data):
    """Names of images: for replicas without and with GPUs; without a `gpu`, both have the first."""

    cpu: str
    gpu: str = ""


class _RuntimesFile(_Data):
    images: dict[str, RuntimeImage] = {}
    versions: dict[str, RuntimeVersion] = {}


@dataclass(frozen=True)
class Runtimes:
    """`images` by their short names, `versions` by runtime version."""

    images: Mapping[str, RuntimeImage]
    versions: Mapping[str, RuntimeVersion]

    def image_for(self, runtime_version: str, gpus: bool) -> str:
        """The image that a job of this version runs in, "" being none named. Raises InvalidArgument for a
        version that is not in the table."""
        version = self.versions.get(runtime_version) or self.versions.get(ANY_VERSION)
        if version is None:
            known = ", ".join(sorted(self.versions))
            raise InvalidArgument(
                f"The runtime version {runtime_version!r} is not offered; offered are {known}."
            )
        return self.images[version.gpu if gpus and version.gpu else version.cpu].image

    def dockerfile_of(self, image: str) -> str:
        """What the image is built from here; "" for one that is pulled."""
        return next((entry.dockerfile for entry in self.images.values() if entry.image == image), "")


def load_runtimes(site_file: Path | None = None) -> Runtimes:
    """The shipped table with the site's own laid over it, entry by entry.

    Raises InvalidArgument, naming the file and the entry, when the site's file cannot be read or is wrong.
    """
    path = configs_dir() / "runtimes.yaml"
    table = _read(path)
    if site_file is not None:
        site = _read(site_file)
        table = _RuntimesFile(
            images={**table.images, **site.images}, versions={**table.versions, **site.versions}
        )
    return _checked(site_file or path, table)


def constraints_file() -> Path:
    """The exact versions that images of runtimes are built with, as pip reads them."""
    packaged = configs_dir() / "constraints.txt"
    return packaged if packaged.is_file() else configs_dir().parent / "constraints.txt"


def _checked(path: Path, table: _RuntimesFile) -> Runtimes:
    for version, names in table.versions.items():
        for name in filter(None, (names.cpu, names.gpu)):
            if name not in table.images:
                known = ", ".join(table.images)
                raise InvalidArgument(
                    f"{path}: versions.{version} names the image {name!r}; the images are {known}."
                )
    return Runtimes(images=table.images, versions=table.versions)


def _read(path: Path) -> _RuntimesFile:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: is not YAML: {error}") from error
    try:
        table = _RuntimesFile.model_validate(data or {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        if where.endswith(".[key]"):  # 1.10 is the number 1.1 in YAML
            raise InvalidArgument(
                f"{path}: {where.removesuffix('.[key]')}: a version or a name that YAML takes for a number "
                'needs quotes: "2.10".'
            ) from error
        raise InvalidArgument(f"{path}: {where}: {first['msg']}.") from error
    return table.model_copy(
        update={"images": {name: _beside(path, image) for name, image in table.images.items()}}
    )


def _beside(path: Path, image: RuntimeImage) -> RuntimeImage:
    """The same with its Dockerfile's whole path."""
    if not image.dockerfile:
        return image
    return image.model_copy(update={"dockerfile": str(path.absolute().parent / image.dockerfile)})
