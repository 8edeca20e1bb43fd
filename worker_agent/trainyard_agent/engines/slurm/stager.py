"""Stager of runs in Slurm: an environment for a job with packages, and a job-dir for one with an image.

The image itself is pulled by the first node of the run's job (`pull.py`).
"""

import asyncio
from pathlib import Path

from trainyard_agent.runtimes.base import Mount
from trainyard_agent.staging import job_dirs
from trainyard_agent.staging.base import Staging, StagingFailed
from trainyard_agent.staging.environments.python_environment import PackageStager
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder


class SlurmStager(PackageStager):
    async def _prepare(self, order: RunOrder) -> Staging:
        wanted = order.training_input
        if not wanted.image_uri:
            return await super()._prepare(order)
        if not wanted.runs_image:
            raise StagingFailed(
                Reason.REFUSED,
                "Slurm installs no packages in an image: leave masterConfig.imageUri away, or build them into it.",
            )
        directory = "" if "://" in order.directory else order.directory
        if directory and not Path(directory).is_absolute():
            message = f"The job-dir {directory} cannot be used: it is neither a gs:// address nor an absolute path."
            raise StagingFailed(Reason.START_FAILED, message)
        await asyncio.to_thread(job_dirs.create_default, directory)
        others = [other for other in order.reads if other != directory and Path(other).is_dir()]
        reads = tuple(Mount(f"after-{number}", other, other) for number, other in enumerate(others, start=1))
        return Staging("ready", job_dir=directory, job_dir_target=directory, reads=reads)
