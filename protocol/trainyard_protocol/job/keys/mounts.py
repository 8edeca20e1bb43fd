"""Rules of mounts: names, paths in containers, variables and their number. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator

from trainyard_protocol.errors import Violation, quoted
from trainyard_protocol.fields import Text, validation_error
from trainyard_protocol.job.keys.secrets import OWN_PREFIXES, SecretReference, overlap
from trainyard_protocol.message import Message

MAX_MOUNTS = 16
"""Mounts of one job."""

NAME_RULE = "a lower-case letter, then lower-case letters, digits and '-', at most 40 characters"

VARIABLE_PREFIX = f"{OWN_PREFIXES[0]}MOUNT_"

CACHE_PATH = "/opt/trainyard/cache"
"""The path of the project's cache in containers."""

CACHE_VARIABLES = {"HF_HOME": "huggingface", "TORCH_HOME": "torch", "JAX_COMPILATION_CACHE_DIR": "jax"}
"""Variables of libraries that keep what they download or compile, and the directory of each in the cache."""

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_PATH = re.compile(r"(/[A-Za-z0-9_.@+-]{1,100}){1,20}")
_CLOSED = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/sbin", "/sys", "/usr"),
    *("/home/trainyard", "/opt/runtime", "/opt/trainyard", "/tmp/hypertune"),  # noqa: S108 - in containers
)
"""Directories of the system and of the service: no mount is in one, or above one."""

_WHOLE = ("/root", "/run", "/var/run", "/var/tmp")  # noqa: S108 - in containers
"""Directories that a mount may be in, but not replace."""


def is_mount_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def checked_mount_name(value: str) -> str:
    if not is_mount_name(value):
        raise validation_error(f"{quoted(value)} is not a mount's name: {NAME_RULE}.")
    return value


def checked_mount_path(value: str) -> str:
    if not _PATH.fullmatch(value) or {".", ".."} & set(value.split("/")):
        raise validation_error(
            "must be an absolute path such as /data, of letters, digits and _.@+-, without a slash at its end; "
            f"this is {quoted(value)}."
        )
    closed = next((path for path in _CLOSED if overlap(value, path)), "")
    closed = closed or next((path for path in _WHOLE if f"{path}/".startswith(f"{value}/")), "")
    if closed:
        raise validation_error(f"must not be in the way of {closed}; this is {quoted(value)}. Use /data or /mnt/NAME.")
    return value


def not_too_many_mounts(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) > MAX_MOUNTS:
        raise validation_error(f"may list at most {MAX_MOUNTS} mounts; it lists {len(value)}.")
    return value


def variable_of(name: str) -> str:
    """The variable with the path of a mount: `TRAINYARD_MOUNT_IMAGENET_21K` of `imagenet-21k`."""
    return VARIABLE_PREFIX + name.upper().replace("-", "_")


def paths_at(path: str, directories: Mapping[str, str]) -> dict[str, str]:
    """The values of variables by name, of which each is the path of a directory in `path`, "": its own."""
    return {name: f"{path}/{below}" if below else path for name, below in directories.items()}


class MountReference(Message):
    """A directory that the site names, such as a data set. A container has it at `path`, by default /mnt/NAME. Not of
    the v1 API."""

    name: Annotated[Text, AfterValidator(checked_mount_name)]
    path: Annotated[Text, AfterValidator(checked_mount_path)] = ""

    @property
    def target(self) -> str:
        """The path in a container."""
        return self.path or f"/mnt/{self.name}"


def clashes(mounts: Iterable[MountReference], secrets: Iterable[SecretReference], job_dir: str) -> Iterator[Violation]:
    """Mounts that come twice, or are in the way of a secret's file, of the job-dir or of each other."""
    names: set[str] = set()
    used = {reference.file: "a secret's file" for reference in secrets if reference.file}
    if job_dir.startswith("/"):
        used[job_dir.rstrip("/")] = "the job-dir"
    for number, mount in enumerate(mounts):
        at = f"mounts[{number}]"
        if mount.name in names:
            yield Violation(f"{at}.name", f"{mount.name} is mounted already.")
        names.add(mount.name)
        if clash := next((path for path in used if overlap(path, mount.target)), ""):
            yield Violation(
                f"{at}.path", f"{mount.target} is in the way of {clash}, {used[clash]}: choose another one."
            )
        used.setdefault(mount.target, "the path of another mount")
