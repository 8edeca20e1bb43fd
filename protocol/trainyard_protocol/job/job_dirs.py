"""Layout of job-dirs on disk. On a service of many people each lies below ROOT/PROJECT/OWNER, its owner's alone."""

import hashlib
import re
from pathlib import PurePosixPath
from urllib.parse import quote

_PROJECT = "{project}"
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9-]{0,31}[a-z0-9])?")
_HASHED = 24


def owner_parts(project: str, owner: str) -> tuple[str, str]:
    """The names below a root of the directory of one owner in one project. Different owners have different names, and
    none is hidden or leads elsewhere. `owner` is not ""."""
    return _name(project), _name(owner)


def default_job_dir(root: str, project: str, owner: str, job_id: str) -> str:
    """The directory of a job without jobDir. `owner` "": one person has all jobs, or the owner is unknown."""
    names = owner_parts(project, owner) if owner else (project,)
    return "/".join((root.rstrip("/"), *names, job_id))


def root_of_project(root: str, project: str) -> str:
    """The root of default job-dirs in a project. In `gs://NAME-{project}` the placeholder becomes the project's name,
    or a hash of it where no bucket may be called so. Different projects have different buckets."""
    digest = hashlib.sha256(project.encode()).hexdigest()[:_HASHED]
    return root.replace(_PROJECT, project if _PLAIN.fullmatch(project) else f"-{digest}")


def has_bucket_of_project(root: str) -> bool:
    """Whether each project has a bucket of its own below a root."""
    return root.startswith("gs://") and _PROJECT in root


def is_owners(relative: PurePosixPath, project: str, owner: str) -> bool:
    """Whether a path relative to a root lies below the directory of that owner. Pure: says nothing about links."""
    parts = relative.parts
    return bool(owner) and len(parts) > 2 and ".." not in parts and parts[:2] == owner_parts(project, owner)


def _name(text: str) -> str:
    quoted = quote(text, safe="@+:")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
