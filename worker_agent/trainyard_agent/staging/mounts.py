"""Mounts of an agent: the directories that its operator names in --mounts, and the caches of projects.

A job names a mount, and never a path of the machine. Whether its project may use it is checked here again. A cache is
a directory for each project. Where the agent is root, replicas have many users: the directory then belongs to a group
of the project, which the users of its runs are in, and so does what they leave there.
"""

import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from trainyard_agent.host import disk
from trainyard_agent.runtimes.base import Mount, StartFailed
from trainyard_protocol.answers.health import Finding
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.job_dirs import owner_parts
from trainyard_protocol.job.keys import mounts as mount_rules
from trainyard_protocol.job.keys.secrets import overlap
from trainyard_protocol.job.mounts import CACHE, SiteDirectory, SiteMounts, load_mounts
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.agents import MountOffer
from trainyard_protocol.wire.sync import RunOrder

_FIRST_GROUP, _GROUPS = 0x7000_0000, 0x0800_0000
"""Ids that neither systemd nor the usual directory services give to anybody, nor the users of containers have."""

_SHARED, _PRIVATE = 0o2770, 0o700
_DEFAULT_ACL = "system.posix_acl_default"
_GROUP_WRITES = struct.pack("<I" + "HHI" * 3, 2, 1, 7, 2**32 - 1, 4, 7, 2**32 - 1, 32, 0, 2**32 - 1)
"""`setfacl -d -m u::rwx,g::rwx,o::-`: whatever the umask of a program, its group may write to what it makes."""


class AgentMounts:
    """The directories of `site`. `of_pods`: they are volumes of a cluster, which only its nodes see."""

    def __init__(self, site: SiteMounts, of_pods: bool = False) -> None:
        self._site = site
        self._of_pods = of_pods

    @classmethod
    def open(cls, file: Path | None, of_pods: bool) -> "AgentMounts":
        """The directories of a file, which are there. Raises InvalidArgument with file and line."""
        mounts = cls(SiteMounts() if file is None else load_mounts(file), of_pods)
        for name, problem in mounts.problems():
            raise InvalidArgument(f"{mounts._site.positions[name]}: {name}: {problem}.")
        return mounts

    @property
    def offers(self) -> tuple[MountOffer, ...]:
        return tuple(
            MountOffer(name=name, read_only=mount.read_only, projects=tuple(mount.projects))
            for name, mount in self._site.mounts.items()
        )

    @property
    def cache(self) -> MountOffer | None:
        """The offer of caches; None without them."""
        caches = self._site.caches
        if caches is None:
            return None
        return MountOffer(name=CACHE, read_only=False, projects=tuple(caches.projects))

    def problems(self) -> Iterator[tuple[str, str]]:
        """The names of the directories that cannot be used, each with the reason as a clause."""
        for name, directory in self._site.entries():
            if directory.is_of_pods is not self._of_pods:
                needed = "persistentVolumeClaim or hostPath" if self._of_pods else "path"
                yield name, f"an agent of this --runtime needs {needed} here"
            elif directory.path is not None and (problem := _problem(Path(directory.path), name == CACHE)):
                yield name, problem
            elif holder := self._writable_holder(name, directory):
                yield name, f"it is in the writable mount {holder}, where a job may put a link in its place"

    def _writable_holder(self, name: str, directory: SiteDirectory) -> str:
        """The mount that jobs may write to and that the directory is in; "" without one. In a claim links lead nowhere
        else."""
        return next(
            (
                other
                for other, mount in self._site.mounts.items()
                if other != name
                and not mount.read_only
                and mount.persistent_volume_claim is None
                and PurePosixPath(_real(directory)).is_relative_to(_real(mount))
                and _real(directory) != _real(mount)
            ),
            "",
        )

    def findings(self) -> Iterator[Finding]:
        """Findings of the doctor."""
        problems = list(self.problems())
        for name, problem in problems:
            yield Finding(
                check="mounts",
                status="problem",
                found=f"{self._site.positions[name]}: {name}: {problem}.",
                meaning="Runs that need it fail to start here, and the agent does not start again.",
                advice="Mount or create the directory, or remove the entry and restart the agent.",
            )
        names = ", ".join(name for name, _ in self._site.entries())
        if names and not problems:
            yield Finding(check="mounts", status="ok", found=f"The directories of --mounts are there: {names}.")

    def of(self, order: RunOrder, job_dir: str = "") -> tuple[Mount, ...]:
        """The mounts of a run, with its project's cache, which is made. `job_dir` is what its containers have mounted
        for the job-dir, "": nothing. Raises StartFailed."""
        first = order.replicas[0].task
        mounts = [self._mount(reference.name, reference.target, order) for reference in order.training_input.mounts]
        for mount in mounts:
            if job_dir and overlap(job_dir, mount.path):
                raise StartFailed(first, f"The mount at {mount.path} is in the way of the job-dir, in {job_dir}.")
        try:
            mounts += self._cache(order.project)
        except OSError as error:
            message = f"The cache of the project {order.project} cannot be made: {disk.in_words(error)}."
            raise StartFailed(first, message, Reason.HOST_FAILED) from error
        return tuple(mounts)

    def _mount(self, name: str, target: str, order: RunOrder) -> Mount:
        first, mount = order.replicas[0].task, self._site.mounts.get(name)
        if mount is None or (mount.projects and order.project not in mount.projects):
            # The server did not know yet: the run waits for an agent that has it.
            why = "has no mount" if mount is None else f"may not give the project {order.project} its mount"
            raise StartFailed(first, f"The agent {why} {name} (--mounts).", Reason.GIVEN_BACK)
        if mount.path is not None and (problem := _problem(Path(mount.path))):
            raise StartFailed(first, f"The mount {name} cannot be used: {problem}.", Reason.HOST_FAILED)
        variables = {mount_rules.variable_of(name): ""}
        return Mount(name, _real(mount), target, mount.read_only, variables)

    def _cache(self, project: str) -> Iterator[Mount]:
        """Raises OSError."""
        caches = self._site.caches
        if caches is None or (caches.projects and project not in caches.projects):
            return
        (folder, _), group = owner_parts(project, project), None
        source = f"{_real(caches)}/{folder}"
        if not self._of_pods:
            group = _group_of(project) if os.geteuid() == 0 else None
            _make_cache(Path(source), group)
        yield Mount(CACHE, source, mount_rules.CACHE_PATH, False, mount_rules.CACHE_VARIABLES, group)


def _real(directory: SiteDirectory) -> str:
    """The source without links."""
    return directory.source if directory.path is None else str(Path(directory.path).resolve())


def _problem(path: Path, is_ours: bool = False) -> str:
    """The reason why a directory of this machine cannot be used, as a clause; "" if it can. `is_ours`: the agent makes
    directories in it, in whose place nobody may put another."""
    try:
        real = path.resolve(strict=True)
        if not real.is_dir():
            return f"{path} is no directory"
        if is_ours and real.stat().st_mode & stat.S_IWOTH:
            return f"every user of the machine may write to {path} (chmod o-w)"
        for parent in {*real.parents, *path.parents}:
            status = parent.stat()
            if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
                return f"every user of the machine may replace what is in {parent}, on the way to it (chmod o-w)"
    except OSError as error:
        return f"{path} cannot be used ({error.strerror})"
    return "" if os.access(real, os.R_OK | os.X_OK) else f"{path} cannot be read by the agent"


def _group_of(project: str) -> int:
    """The group of a project's cache, which no user of the machine is in."""
    digest = hashlib.sha256(b"cache of " + project.encode()).digest()
    return _FIRST_GROUP + int.from_bytes(digest[:8], "big") % _GROUPS


def _make_cache(path: Path, group: int | None) -> None:
    """Make the directory of a project, for the agent's user alone, or for that group. Raises OSError."""
    path.mkdir(_PRIVATE, exist_ok=True)
    status = path.stat()
    if group is None or (status.st_gid, stat.S_IMODE(status.st_mode)) == (group, _SHARED):
        return
    os.chown(path, 0, group)
    try:
        os.setxattr(path, _DEFAULT_ACL, _GROUP_WRITES)
    except OSError as error:
        message = f"the file system of {path} has no access control lists ({error.strerror})"
        raise OSError(error.errno, message) from error
    path.chmod(_SHARED)  # last: a directory with this mode is complete
