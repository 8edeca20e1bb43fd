"""Users of containers: an unprivileged one in place of an image's own.

Where the agent is root, each owner of jobs has an id of its own, which no person has: what a job leaves in its job-dir
is of no use on the host, setuid or not. The id follows from the owner's name, so agents that share storage agree on it.
Any other agent can give files to nobody else: containers have its own user.
"""

import hashlib
import io
import os
import pwd
import tarfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from trainyard_agent.engines.docker.settings import Choice
from trainyard_agent.engines.docker.spec import HOME, ImageInfo
from trainyard_agent.runtimes.base import ProgramUser
from trainyard_protocol.job.job_dirs import owner_parts
from trainyard_protocol.wire.sync import RunOrder

FIRST, COUNT = 0x7800_0000, 0x0800_0000
"""Ids that neither systemd nor the usual directory services give to anybody."""

_ROOTS_HOME = "/root"


@dataclass(frozen=True, slots=True)
class ContainerUsers:
    """Chooses the users of containers. `one_user`: all jobs are one person's."""

    choice: Choice = "auto"
    one_user: bool = False

    def of(self, order: RunOrder, image: ImageInfo, user_namespace: bool) -> ProgramUser | None:
        """The user of a container of this image; None: the image's own. `user_namespace`: that of the engine, where
        root of a container is nobody on the host."""
        if self.choice == "image" or (self.choice == "auto" and user_namespace):
            return None
        if self.choice == "auto" and self.one_user and not image.is_roots:
            return None
        return self.unprivileged(order)

    def unprivileged(self, order: RunOrder) -> ProgramUser:
        """The user in place of root."""
        if isinstance(self.choice, tuple):
            return _named(*self.choice)
        if os.geteuid() != 0:
            return _named(os.geteuid(), os.getegid())
        owner = "" if self.one_user else "/".join(owner_parts(order.project, order.owner))
        digest = hashlib.sha256(owner.encode()).digest()
        number = FIRST + int.from_bytes(digest[:8], "big") % COUNT
        return _named(number, number)


def home_archive(
    mode: Callable[[str], int | None], user: ProgramUser, directory: str, mounts: Collection[str]
) -> bytes:
    """The archive that gives a created container a home for its user, and lets it enter root's, where images have
    programs too, and write to the image's working directory. What is in `mounts` is left alone. `mode`: of a
    directory of the image, None where there is none. Raises what `mode` raises."""
    entries: dict[str, tuple[int, ProgramUser | None]] = {}
    closed = [PurePosixPath(_ROOTS_HOME), *PurePosixPath(directory).parents[:-1]]
    for path in map(str, closed):
        current = None if _is_within(path, mounts) else mode(path)
        if current is not None and current & 0o005 != 0o005:
            entries[path] = (current | 0o055, None)
    if directory != "/" and not _is_within(directory, mounts):
        current = mode(directory)
        if current is not None and not current & 0o002:
            entries[directory] = (current | 0o700, user)
    entries[HOME] = (0o700, user)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for path, (permissions, owner) in entries.items():
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, permissions
            if owner is not None:
                entry.uid, entry.gid = owner.uid, owner.gid
            tar.addfile(entry)
    return content.getvalue()


def _is_within(path: str, mounts: Collection[str]) -> bool:
    return any(mount and PurePosixPath(path).is_relative_to(mount) for mount in mounts)


def _named(uid: int, gid: int) -> ProgramUser:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"trainyard-{uid}"
    return ProgramUser(uid, gid, name)
