"""Settings of an agent on a login node of Slurm."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator

from trainyard_agent.settings import EngineSettings, setting


class SlurmSettings(EngineSettings):
    title: ClassVar[str] = "Slurm"
    about: ClassVar[str | None] = "Options of --runtime slurm, for an agent on a login node."
    spans_hosts: ClassVar[bool] = True
    start_deadline_s: ClassVar[float] = float("inf")

    shared_dir: Annotated[Path | None, AfterValidator(lambda path: path and path.absolute())] = setting(
        None,
        "directory for runs and environments, on a file system that the nodes have at the same path",
        "DIR",
    )
    slurm_partition: str = setting("", "partition of the jobs; default: the site's", "NAME")
    slurm_account: str = setting("", "account of the jobs; default: this user's", "NAME")

    def problem(self, serves: bool, one_user: bool) -> str:
        if self.shared_dir is None:
            return "--runtime slurm needs --shared-dir, a directory that the nodes of Slurm have too"
        if serves and not one_user:
            return "--runtime slurm runs all jobs with the rights of this user: add --one-user if they are its own"
        return ""

    @property
    def directory(self) -> Path:
        """The shared directory, which `problem` requires."""
        assert self.shared_dir is not None
        return self.shared_dir


SETTINGS = SlurmSettings
