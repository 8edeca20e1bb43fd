"""Job-dirs that are paths of the host, the only paths that a job may name.

A container has a directory mounted that no job can replace by a link. On a service of many people that is the first
one below ROOT/PROJECT/OWNER: no container has one of these or their parents. The rest of a job-dir's path is looked up
inside, where links lead to the container's own files. With --one-user the job-dir itself is mounted.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trainyard_agent.host import directories, disk, unix_users
from trainyard_agent.host.directories import LinkInPath
from trainyard_agent.runtimes.base import Mount, ProgramUser
from trainyard_agent.staging.base import StagingFailed
from trainyard_protocol.job.job_dirs import is_owners, owner_parts
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder

_SHARED = 2  # PROJECT/OWNER, of several jobs
_PASSED_THROUGH = 0o711  # by whoever knows the rest of the path
_OWN = 0o700
_READABLE = 0o755
_WRITABLE_BY_OTHERS = 0o022


@dataclass(frozen=True, slots=True)
class JobDirMount:
    """The mount of a job-dir: the host's directory `source` at `target` in the container."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class JobDirs:
    """The job-dirs that may be mounted: those below one of `roots`; without `one_user` below its PROJECT/OWNER."""

    roots: tuple[Path, ...] = ()
    one_user: bool = False

    def prepare(self, order: RunOrder, user: ProgramUser | None) -> JobDirMount | None:
        """Create the job-dir if it is missing. Returns None if the job has none that is a path.

        An agent that is root gives what root has there to `user`, if the replicas have one. Raises StagingFailed: a
        job must not access the rest of the machine.
        """
        if not order.directory or "://" in order.directory:
            return None
        path = Path(order.directory)
        root, names = self._place(path, order)
        depth = len(names) if self.one_user else _SHARED + 1
        modes = [_PASSED_THROUGH] * len(names)
        if self.one_user or not order.training_input.job_dir:
            modes[-1] = _OWN
        else:  # the server, which shows its files, may have a user of its own
            modes[_SHARED:] = [_READABLE] * (len(names) - _SHARED)
        try:
            with directories.open_below(root, list(zip(names, modes, strict=True))) as fds:
                if not self.one_user:
                    for level, fd in enumerate(fds[:depth]):
                        _shut(fd, root.joinpath(*names[:level]), is_project=level == 1)
                if user is not None and os.geteuid() == 0:
                    _give(fds[depth], path, user)
        except LinkInPath as error:
            raise _failed(path, f"{error.strerror}; a job-dir must lead through no link") from error
        except OSError as error:
            raise _not_created(path, error) from error
        return _mount(path, root, names, depth)

    def of_others(self, order: RunOrder, own: JobDirMount | None) -> tuple[list[Mount], list[str]]:
        """Mounts of the directories that the run may read, and why others have none. Without `one_user` they are those
        of the job's owner."""
        mounts: dict[str, Mount] = {}
        refused = []
        for path in (Path(directory) for directory in order.reads if "://" not in directory):
            try:
                root, names = self._place(path, order)
            except StagingFailed as error:
                refused.append(f"Not mounted: {error}")
                continue
            mount = _mount(path, root, names, len(names) if self.one_user else _SHARED + 1)
            is_there = Path(mount.source).is_dir() and str(Path(mount.source).resolve()) == mount.source
            if is_there and (own is None or mount.target != own.target):
                mounts[mount.target] = Mount(f"after-{len(mounts) + 1}", mount.source, mount.target)
        return list(mounts.values()), refused

    def _place(self, path: Path, order: RunOrder) -> tuple[Path, tuple[str, ...]]:
        """The root of a path and the names below it."""
        if not path.is_absolute() or "\0" in str(path):
            raise _failed(path, "it is neither a gs:// address nor an absolute path")
        if not self.roots:
            raise _failed(path, "this agent may mount no directory of its machine (see its option --job-dir-root)")
        if not self.one_user and not order.owner:
            raise _failed(path, "the server does not say whose job it is; it is older than the agent")
        for root in self._bases():
            if path.is_relative_to(root) and path != root and ".." not in path.parts:
                below = path.relative_to(root)
                if self.one_user or is_owners(PurePosixPath(below), order.project, order.owner):
                    return root, below.parts
        owners = () if self.one_user else owner_parts(order.project, order.owner)
        allowed = ", ".join(str(root.joinpath(*owners)) for root in self.roots)
        raise _failed(path, f"this agent may mount only directories below {allowed} (its --job-dir-root)")

    def _bases(self) -> Iterator[Path]:
        """The roots as they were given and without links, the innermost first."""
        both = {base for root in self.roots for base in (root.absolute(), root.resolve())}
        yield from sorted(both, key=lambda base: len(base.parts), reverse=True)


def _mount(path: Path, root: Path, names: Sequence[str], depth: int) -> JobDirMount:
    """The mount of the first `depth` of the names below the root."""
    target = PurePosixPath(*path.parts[: len(path.parts) - len(names) + depth])
    return JobDirMount(str(root.resolve().joinpath(*names[:depth])), str(target))


def create_default(job_dir: str, user: int | None = None) -> None:
    """Create the directory that the service chose for a job, for one user alone: `user`, None: the agent's. "" and
    gs://: nothing.

    Raises StagingFailed.
    """
    if not job_dir or "://" in job_dir:
        return
    path = Path(job_dir)
    for parent in reversed(path.parents):
        _create(parent, _PASSED_THROUGH)
    _create(path, _OWN)
    if user is None:
        return
    try:
        unix_users.give(path, user)
    except OSError as error:
        message = f"The job-dir {path} cannot be given to the job's user: {error.strerror}."
        raise StagingFailed(_whose(error), message) from error
    if closed := unix_users.closed_to(path.parent):
        message = f"The job-dir {path} cannot be used: the users of jobs may not enter {closed} (chmod o+x)."
        raise StagingFailed(Reason.START_FAILED, message)


def _shut(fd: int, path: Path, is_project: bool) -> None:
    """Check that nobody but this user and root can replace what is in the directory. Raises StagingFailed, OSError.

    Where this is not root, containers have the agent's user: then nobody else may come to a setuid program that a job
    leaves. Others may pass where users of jobs have to.
    """
    status = os.fstat(fd)
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & _WRITABLE_BY_OTHERS:
        message = f"Only the agent's user and root may write to {path}, in which job-dirs are: chown, chmod go-w."
        raise StagingFailed(Reason.HOST_FAILED, message)
    if is_project and os.geteuid() != 0 and status.st_mode & 0o077:
        Path(f"/proc/self/fd/{fd}").chmod(_OWN)


def _give(fd: int, path: Path, user: ProgramUser) -> None:
    try:
        directories.give(fd, user.uid, user.gid, former=0)
    except OSError as error:
        message = f"The job-dir {path} cannot be given to the user {user.ids} of its containers: {error.strerror}."
        raise StagingFailed(Reason.HOST_FAILED, message) from error


def _failed(path: Path, problem: str) -> StagingFailed:
    return StagingFailed(Reason.START_FAILED, f"The job-dir {path} cannot be used: {problem}.")


def _create(path: Path, mode: int) -> None:
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise _not_created(path, error) from error


def _not_created(path: Path, error: OSError) -> StagingFailed:
    return StagingFailed(_whose(error), f"The job-dir {path} cannot be created: {disk.in_words(error, path)}.")


def _whose(error: OSError) -> Reason:
    """A disk that is full or read-only is the machine's fault; a path that cannot be made is the job's."""
    return Reason.HOST_FAILED if disk.is_machines(error) else Reason.START_FAILED
