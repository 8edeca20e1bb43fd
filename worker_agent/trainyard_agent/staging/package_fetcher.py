"""Fetching a job's packages, wherever packageUris says they are."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from trainyard_agent.server_client import ChecksumMismatch, ControlPlane
from trainyard_agent.staging import archives, gcs
from trainyard_agent.staging.base import StagingFailed
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.states import Reason
from trainyard_protocol.sync import RunOrder
from trainyard_protocol.training_input import parse_training_input

_STAGED = re.compile(r"staging://([0-9a-f]{64})/([^/]+)")
_GCS = re.compile(r"gs://([^/]+)/(.*?([^/]+))")

Say = Callable[[str, str], None]
"""Told a run's id and what is done for it."""


class Fetcher:
    """`emulator` is where gs:// is, as `http://host:port`; "": Google's."""

    def __init__(self, control_plane: ControlPlane, emulator: str) -> None:
        self._control_plane = control_plane
        self._emulator = emulator

    async def fetch(self, order: RunOrder, directory: Path, say: Say) -> list[Path]:
        """Each package in a directory of its own below `directory`, under its own name, in the job's order.

        Raises StagingFailed.
        """
        uris = parse_training_input(order.training_input).package_uris
        return [await self._fetch(order.run_id, uri, directory / str(n), say) for n, uri in enumerate(uris)]

    async def _fetch(self, run_id: str, uri: str, directory: Path, say: Say) -> Path:
        staged, stored = _STAGED.fullmatch(uri), _GCS.fullmatch(uri)
        name = staged[2] if staged else stored[3] if stored else ""
        if not archives.is_package_name(name):
            raise StagingFailed(
                Reason.PACKAGES_FAILED,
                f"{uri} is no package: packageUris name files that end in .tar.gz, .tgz, .zip or .whl, "
                "on gs:// or staged by `jobs submit`.",
            )
        say(run_id, f"fetching {name}")
        directory.mkdir(mode=0o755)
        target = directory / name
        try:
            if staged:
                await self._control_plane.download(staged[1], name, target)
            elif stored:
                await asyncio.to_thread(gcs.download, stored[1], stored[2], target, self._emulator)
        except gcs.NoSuchObject as error:
            raise StagingFailed(Reason.PACKAGES_FAILED, f"{error}.") from error
        except gcs.DownloadFailed as error:
            raise StagingFailed(Reason.STAGING_FAILED, f"{error}.") from error
        except (TrainyardError, ChecksumMismatch) as error:
            raise StagingFailed(Reason.STAGING_FAILED, f"{uri}: {error}") from error
        return target
