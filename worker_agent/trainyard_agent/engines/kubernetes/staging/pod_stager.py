"""Stager of the kubernetes runtime: job-dirs, and the packages of package jobs. Nodes pull the images themselves."""

from dataclasses import replace
from pathlib import Path

from trainyard_agent.engines.kubernetes.staging.pod_job_dirs import PodJobDirs
from trainyard_agent.engines.kubernetes.staging.pod_packages import PodPackages
from trainyard_agent.installer.patience import PATIENCE_S
from trainyard_agent.runtimes.base import Mount
from trainyard_agent.staging.background_stager import BackgroundStager
from trainyard_agent.staging.base import Staging
from trainyard_protocol.wire.sync import RunOrder


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
        found = [other for path in order.reads if (other := self._job_dirs.mount(order, path)) is not None]
        others = {other.target: other.source for other in found if other.target != target}
        reads = tuple(Mount(f"after-{number}", others[at], at) for number, at in enumerate(others, start=1))
        return replace(staged, job_dir=source, job_dir_target=target, reads=reads)
