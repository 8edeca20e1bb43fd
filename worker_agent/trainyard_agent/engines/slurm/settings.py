"""Settings of an agent on a login node of Slurm."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trainyard_agent.engines.slurm.spec import SlurmDefaults
from trainyard_agent.settings import EngineSettings, absolute
from trainyard_protocol.settings import setting

_PROGRAM = re.compile(r"(?:/(?:[^\0\n]*/)?)?(?:apptainer|singularity)")


@dataclass(frozen=True)
class SlurmSettings(EngineSettings):
    title: ClassVar[str] = "Slurm\nOptions of --runtime slurm, for an agent on a login node."
    spans_hosts: ClassVar[bool] = True
    start_deadline_s: ClassVar[float] = float("inf")

    shared_dir: Path | None = setting(
        None,
        "directory for runs and environments, on a file system that the nodes have at the same path",
        metavar="DIR",
        read=absolute,
    )
    slurm_partition: str = setting("", "partition of the jobs", metavar="NAME", default_text="the site's")
    slurm_account: str = setting("", "account of the jobs", metavar="NAME", default_text="this user's")
    slurm_qos: str = setting("", "QOS of the jobs", metavar="NAME", default_text="the site's")
    slurm_images: str = setting(
        "",
        "program of the nodes that runs images: apptainer, singularity, or the path of one; without it jobs with an "
        "image do not run",
        metavar="PROGRAM",
        default_text="none",
    )

    def problem(self, serves: bool, one_user: bool) -> str:
        if self.shared_dir is None:
            return "--runtime slurm needs --shared-dir, a directory that the nodes of Slurm have too"
        if serves and not one_user:
            return "--runtime slurm runs all jobs with the rights of this user: add --one-user if they are its own"
        if self.slurm_images and not _PROGRAM.fullmatch(self.slurm_images):
            return (
                "--slurm-images must be apptainer, singularity, or the absolute path of one of them; "
                f"this is {self.slurm_images!r}"
            )
        return ""

    @property
    def defaults(self) -> SlurmDefaults:
        return SlurmDefaults(self.slurm_partition, self.slurm_account, self.slurm_qos)

    @property
    def directory(self) -> Path:
        """The shared directory, which `problem` requires."""
        assert self.shared_dir is not None
        return self.shared_dir


SETTINGS = SlurmSettings
