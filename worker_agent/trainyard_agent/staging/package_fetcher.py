"""Download of a job's packages from its packageUris."""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from trainyard_agent.server_client import ChecksumMismatch, ServerClient
from trainyard_agent.staging import archives, install_secrets
from trainyard_agent.staging.base import Away, StagingFailed
from trainyard_agent.staging.install_secrets import InstallSecrets
from trainyard_protocol.errors import InvalidArgument, ResourceExhausted, TrainyardError, Unavailable
from trainyard_protocol.net.gcs import OF_RUN, CloudStorage, NoSuchObject, split_url
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder

_STAGED = re.compile(r"staging://([0-9a-f]{64})/([^/]+)")
_GCS = re.compile(r"gs://([^/]+)/(.*?([^/]+))")

ReportActivity = Callable[[str, str], None]
"""Called with a run's id and its current activity."""


class PackageFetcher:
    """Downloads packages. `emulator` is the address of gs://, as `http://host:port`; "": Google's; OF_RUN in
    it is the run's token."""

    def __init__(self, control_plane: ServerClient, emulator: str) -> None:
        self._control_plane = control_plane
        self._emulator = emulator

    async def fetch(self, order: RunOrder, directory: Path, report: ReportActivity) -> list[Path]:
        """Download each package into its own directory below `directory`, in the job's order. Raises StagingFailed, and
        Away where the server or the storage is."""
        uris = order.training_input.package_uris
        return [await self._fetch(order, uri, directory / str(n), report) for n, uri in enumerate(uris)]

    async def secrets(self, order: RunOrder, inspected: Sequence[Path]) -> InstallSecrets:
        """The secrets of the job for the installation of these packages. Raises StagingFailed."""
        return await install_secrets.get(order, inspected, self._control_plane)

    async def _fetch(self, order: RunOrder, uri: str, directory: Path, report: ReportActivity) -> Path:
        staged, stored = _STAGED.fullmatch(uri), _GCS.fullmatch(uri)
        # Vertex AI's client has the time in names, with colons, which separate paths in lists of them.
        name = staged[2] if staged else stored[3].replace(":", "_") if stored else ""
        if not archives.is_package_name(name):
            raise StagingFailed(
                Reason.PACKAGES_FAILED,
                f"{uri} is not a package: packageUris name files that end in .tar.gz, .tgz, .zip or .whl, "
                "on gs:// or staged by `jobs submit`.",
            )
        report(order.run_id, f"fetching {name}")
        directory.mkdir(mode=0o755)
        target = directory / name
        try:
            if staged:
                await self._control_plane.download(staged[1], name, target)
            elif stored:
                emulator = self._emulator.replace(OF_RUN, order.run_token)
                await asyncio.to_thread(_download, CloudStorage("The agent", emulator), uri, target)
        except (InvalidArgument, NoSuchObject) as error:
            raise StagingFailed(Reason.PACKAGES_FAILED, error.message) from error
        except (Unavailable, ResourceExhausted) as error:
            raise Away(f"{uri}: {error}") from error
        except (TrainyardError, ChecksumMismatch) as error:
            raise StagingFailed(Reason.STAGING_FAILED, f"{uri}: {error}") from error
        return target


def _download(storage: CloudStorage, url: str, target: Path) -> None:
    bucket, name = split_url(url)
    with storage.errors(url), closing(storage.client()) as client:
        client.bucket(bucket).blob(name).download_to_filename(str(target), retry=None)  # the stager tries again
