"""Job-dirs of pods that are paths: directories of volumes that the site claims for them.

A pod has a directory of the volume mounted that no job can replace by a link (docs/design/0021): the first one below
ROOT/PROJECT/OWNER, with one user the job-dir itself. The kubelet creates it, and looks up its path without leaving the
volume.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from trainyard_agent.staging.base import StagingFailed
from trainyard_agent.staging.job_dirs import JobDirMount
from trainyard_protocol.job.job_dirs import is_owners, owner_parts
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder

_CLAIM = re.compile(r"([a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)=(/.*)")
_OWN = 3  # PROJECT/OWNER and the first name below


@dataclass(frozen=True, slots=True)
class JobDirClaim:
    """A PersistentVolumeClaim of the agent's namespace for the job-dirs below `root`."""

    name: str
    root: PurePosixPath

    @classmethod
    def parse(cls, text: str) -> "JobDirClaim":
        """`claim=/mnt/jobs`. Raises ValueError."""
        match = _CLAIM.fullmatch(text)
        root = PurePosixPath(match[2] if match is not None else "/")
        if match is None or len(root.parts) < 2 or str(root) != match[2] or ".." in root.parts:
            raise ValueError(f"must look like CLAIM=/mnt/jobs; this is {text!r}")
        return cls(match[1], root)


@dataclass(frozen=True, slots=True)
class PodJobDirs:
    """The job-dirs that may be mounted: those below the root of a claim; without `one_user` below its PROJECT/OWNER."""

    claims: Sequence[JobDirClaim] = ()
    one_user: bool = False

    def mount(self, order: RunOrder, other: str = "") -> JobDirMount | None:
        """The mount of the job-dir; its source is CLAIM/PATH. None without a job-dir that is a path, and for one that
        the service has chosen where pods have none. Raises StagingFailed. Of `other`, a directory of another job, None
        as well where that is not for this one."""
        path = PurePosixPath(directory := other or order.directory)
        holders = [claim for claim in self.claims if path.is_relative_to(claim.root)]
        claim = max(holders, key=lambda holder: len(holder.root.parts), default=None)
        is_optional = other or not order.training_input.job_dir
        if not directory or "://" in directory or (claim is None and is_optional):
            return None
        below = PurePosixPath() if claim is None else path.relative_to(claim.root)
        is_own = self.one_user or is_owners(below, order.project, order.owner)
        if claim is None or path == claim.root or ".." in path.parts or not is_own:
            if other:
                return None
            raise self._refused(path, order)
        names = below.parts if self.one_user else below.parts[:_OWN]
        return JobDirMount("/".join((claim.name, *names)), str(claim.root.joinpath(*names)))

    def _refused(self, path: PurePosixPath, order: RunOrder) -> StagingFailed:
        if not self.claims:
            problem = "pods have no directories of a machine: use gs:// (or the agent needs --job-dir-claim)"
        else:
            owners = () if self.one_user else owner_parts(order.project, order.owner or "OWNER")
            allowed = ", ".join(str(claim.root.joinpath(*owners)) for claim in self.claims)
            problem = f"pods may have only directories below {allowed} (--job-dir-claim of the agent), or gs://"
        return StagingFailed(Reason.START_FAILED, f"The job-dir {path} cannot be used: {problem}.")
