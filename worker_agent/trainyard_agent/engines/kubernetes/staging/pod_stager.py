"""Stager of the kubernetes runtime: job-dirs, and the packages of package jobs. Nodes pull the images themselves."""

import logging
from dataclasses import replace
from pathlib import Path

from trainyard_agent.engines.kubernetes.staging.pod_job_dirs import PodJobDirs
from trainyard_agent.engines.kubernetes.staging.pod_packages import PodPackages
from trainyard_agent.installer.patience import PATIENCE_S
from trainyard_agent.runtimes.base import Mount
from trainyard_agent.staging.background_stager import BackgroundStager
from trainyard_agent.staging.base import Staging, StagingFailed
from trainyard_protocol.wire.sync import RunOrder

_log = logging.getLogger(__name__)


class PodStager(BackgroundStager):
    """Prepares runs of the kubernetes runtime."""

    def __init__(self, root: Path, job_dirs: PodJobDirs, packages: PodPackages, patience_s: float = PATIENCE_S) -> None:
        super().__init__(root, patience_s)
        self._job_dirs = job_dirs
        self._packages = packages

    async def _prepare(self, order: RunOrder) -> Staging:
        mount = self._job_dirs.mount(order)
        staged = Staging("ready")
        if not order.training_input.runs_image:
            staged = await self._packages.prepare(order, self._root / order.run_id, self._set_activity)
        source, target = ("", "") if mount is None else (mount.source, mount.target)
        return replace(staged, job_dir=source, job_dir_target=target, reads=self._of_others(order, target))

    def _of_others(self, order: RunOrder, target: str) -> tuple[Mount, ...]:
        """The directories of other jobs that the run may read, beside what is mounted at `target`."""
        mounts: dict[str, Mount] = {}
        for directory in order.reads:
            try:
                mount = self._job_dirs.mount(order, directory)
            except StagingFailed as error:
                _log.info("run %s has no mount of another job: %s", order.run_id, error)
            else:
                if mount is not None and mount.target != target:
                    mounts[mount.target] = Mount(f"after-{len(mounts) + 1}", mount.source, mount.target)
        return tuple(mounts.values())
