"""Packages of a run in a cluster: fetched and inspected here, installed in its pods.

They travel in a ConfigMap. Where they are too large for one, those that the server has are downloaded by the pods, by
links of the server that are valid for the run.
"""

import asyncio
import hashlib
import ipaddress
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from trainyard_agent.engines.kubernetes.staging.installation import Installation
from trainyard_agent.host.files import remove_tree
from trainyard_agent.runtimes.installing import PACKAGES, SOURCE, InstallLimits
from trainyard_agent.server_client import ServerClient
from trainyard_agent.staging import archives, install_plan, install_secrets
from trainyard_agent.staging.base import Away, Staging, StagingFailed
from trainyard_agent.staging.install_secrets import InstallSecrets
from trainyard_agent.staging.package_fetcher import PackageFetcher, ReportActivity
from trainyard_protocol.errors import InvalidArgument, TrainyardError, Unavailable
from trainyard_protocol.job.runtimes import Runtimes
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder

MOST = 900_000
"""Bytes of all files in the ConfigMap, of which an API server takes 1,048,576 with their names."""

_DOWNLOADS = "/tmp/packages"  # noqa: S108 - in the pod
_AUTHORITIES = "server.pem"


@dataclass(frozen=True, slots=True)
class PodPackageSettings:
    """`server`: the server's URL, as pods reach it; `authorities`: who may sign its certificate, None: those of the
    image."""

    runtimes: Runtimes
    server: str
    authorities: Path | None = None
    limits: InstallLimits = field(default_factory=InstallLimits)


def no_images(runtimes: Runtimes) -> str:
    """The reason why no package job can run in the cluster; "" if one can."""
    names = {name for version in runtimes.versions.values() for name in (version.cpu, version.gpu) if name}
    if not all(runtimes.images[name].dockerfile for name in names):  # an image with one is in no registry
        return ""
    return (
        "it is that of a Kubernetes cluster, whose runtimes file names no image that nodes can pull (--runtimes of the "
        "agent), so it runs only jobs with an image (masterConfig.imageUri)"
    )


class PodPackages:
    """Prepares package jobs. `fetcher` downloads the packages."""

    def __init__(self, control_plane: ServerClient, fetcher: PackageFetcher, settings: PodPackageSettings) -> None:
        self._control_plane = control_plane
        self._fetcher = fetcher
        self._settings = settings

    async def prepare(self, order: RunOrder, directory: Path, report: ReportActivity) -> Staging:
        """Prepare a run in the directory. Raises StagingFailed."""
        images = {order.training_input.image_uri: self._image(order)}
        if not order.training_input.package_uris:
            return Staging("ready", python="python3", images=images)
        await asyncio.to_thread(remove_tree, directory)
        directory.mkdir(mode=0o700)
        files = await asyncio.to_thread(Installation.prepare, directory)
        packages = await self._fetcher.fetch(order, files, report)
        isolated = await archives.isolated(packages)
        settings, referred = await install_secrets.names(order, packages)
        secrets = InstallSecrets(dict.fromkeys(settings, ""), dict.fromkeys(referred, ""))
        contents = _Contents(files, packages, isolated, secrets, self._settings.limits.patience_s)
        variables = await asyncio.to_thread(contents.write, {}, None)
        if contents.size > MOST:
            links = await self._links(order, packages)
            variables = await asyncio.to_thread(contents.write, links, self._settings.authorities)
        if contents.size > MOST:
            raise StagingFailed(
                Reason.PACKAGES_FAILED,
                f"Its packages on gs:// have {contents.size / 1e6:.3g} MB with what their installation needs, and pods "
                f"get {MOST / 1e6:g} MB at most. Upload them with `jobs submit --packages`: then pods download them.",
            )
        installation = Installation(
            names=tuple(package.name for package in packages),
            limits=self._settings.limits,
            secrets=(*sorted(settings), *sorted(referred)),
            files=tuple(str(path.relative_to(files)) for path in contents.paths),
            environment=variables,
            command=install_plan.COMMAND,
        )
        await asyncio.to_thread(installation.write, directory)
        return Staging("ready", python=f"{PACKAGES}/bin/python", images=images, packages=str(directory))

    def _image(self, order: RunOrder) -> str:
        if order.training_input.image_uri:
            return order.training_input.image_uri
        runtimes, version = self._settings.runtimes, order.training_input.runtime_version
        gpus = any(replica.has_gpus for replica in order.replicas)
        try:
            name = runtimes.image_for(version, gpus)
        except InvalidArgument as error:
            raise StagingFailed(Reason.IMAGE_FAILED, error.message) from error
        if runtimes.dockerfile_of(name):
            what = f"its runtimeVersion {version}" if version else "jobs without a runtimeVersion"
            raise StagingFailed(
                Reason.IMAGE_FAILED,
                f"The runtimes file of the cluster's agent has no image for {what} that nodes can pull: {name} is "
                "built on a machine. Push it to a registry, and name it there in the file (docs/how-to/kubernetes.md).",
            )
        return name

    async def _links(self, order: RunOrder, packages: list[Path]) -> dict[Path, str]:
        """The URLs of the packages that the server has. Raises StagingFailed if pods cannot download them."""
        try:
            paths = (await self._control_plane.package_links(order.run_id)).paths
        except Unavailable as error:
            raise Away(f"Its packages: {error}") from error
        except TrainyardError as error:
            raise StagingFailed(Reason.STAGING_FAILED, f"Its packages: {error}") from error
        server = self._settings.server.rstrip("/")
        named = zip(order.training_input.package_uris, packages, strict=True)
        links = {package: f"{server}{paths[uri]}" for uri, package in named if uri in paths}
        if links and _is_loopback(server):
            raise StagingFailed(
                Reason.PACKAGES_FAILED,
                f"Its packages are too large for a ConfigMap ({MOST / 1e6:g} MB), so pods download them from the server"
                f", which they cannot reach at {server}: the agent needs --server-url-for-pods URL.",
            )
        return links


class _Contents:
    """The files of an installation, in a directory: the packages, each below a number, and the plan. `secrets`: their
    names alone."""

    def __init__(
        self, directory: Path, packages: list[Path], isolated: list[Path], secrets: InstallSecrets, patience_s: float
    ) -> None:
        self._directory = directory
        self._patience_s = patience_s
        self._isolated = isolated
        self._secrets = secrets
        self._digests: dict[Path, str] = {}
        for package in packages:
            with package.open("rb") as file:
                self._digests[package] = hashlib.file_digest(file, "sha256").hexdigest()

    def write(self, links: Mapping[Path, str], authorities: Path | None) -> dict[str, str]:
        """Write the plan, and remove the packages that pods download. Returns the variables of pip."""
        inside = {
            package: f"{_DOWNLOADS if package in links else SOURCE}/{package.relative_to(self._directory)}"
            for package in self._digests
        }
        listed = [
            {"path": path, "sha256": self._digests[package], "url": links.get(package, "")}
            for package, path in inside.items()
        ]
        more: dict[str, object] = {"files": listed}
        if links and authorities is not None:
            shutil.copyfile(authorities, self._directory / _AUTHORITIES)
            more["authorities"] = f"{SOURCE}/{_AUTHORITIES}"
        for package in links:
            package.unlink()
        variables = install_plan.write(
            self._directory, inside, self._isolated, self._secrets, more=more, patience_s=self._patience_s
        )
        return {name: value for name, value in variables.items() if name not in self._secrets.values}

    @property
    def paths(self) -> list[Path]:
        return sorted(path for path in self._directory.rglob("*") if path.is_file())

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.paths)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
