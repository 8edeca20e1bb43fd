"""Layout of job-dirs on disk. On a service of many people each lies below ROOT/PROJECT/OWNER, its owner's alone."""

from pathlib import PurePosixPath
from urllib.parse import quote


def owner_parts(project: str, owner: str) -> tuple[str, str]:
    """The names below a root of the directory of one owner in one project. Different owners have different names, and
    none is hidden or leads elsewhere. `owner` is not ""."""
    return _name(project), _name(owner)


def default_job_dir(root: str, project: str, owner: str, job_id: str) -> str:
    """The directory of a job without jobDir. `owner` "": one person has all jobs, or the owner is unknown."""
    names = owner_parts(project, owner) if owner else (project,)
    return "/".join((root.rstrip("/"), *names, job_id))


def is_owners(relative: PurePosixPath, project: str, owner: str) -> bool:
    """Whether a path relative to a root lies below the directory of that owner. Pure: says nothing about links."""
    parts = relative.parts
    return bool(owner) and len(parts) > 2 and ".." not in parts and parts[:2] == owner_parts(project, owner)


def _name(text: str) -> str:
    quoted = quote(text, safe="@+:")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
