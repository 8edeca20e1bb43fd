"""Records the origin of a job that is submitted. What prevents it is a warning: the job runs without."""

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard_cli.origin import git
from trainyard_cli.submission.comparison import package_digest
from trainyard_cli.submission.config_file import STDIN, ConfigFile
from trainyard_cli.submission.submit import JobDraft
from trainyard_cli.v1_client import V1Client
from trainyard_programs.git import GitError, GitTooSlow
from trainyard_protocol import __version__
from trainyard_protocol.answers.origin import MAX_PACKAGES, GitOrigin, JobOrigin
from trainyard_protocol.errors import NotFound, TrainyardError

NO_DIFF = "TRAINYARD_NO_DIFF"
"""The variable that leaves out the diff, as --no-diff does."""

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that is to be submitted: its config as it was given, the directory of --build, and the job whose config
    and packages it repeats ("": none)."""

    draft: JobDraft
    config: Path | ConfigFile | None = None
    build: str = ""
    repeats: str = ""
    no_diff: bool = False


def prepare(client: V1Client, submitted: Submitted, notify: Notify) -> JobOrigin:
    """The origin of a job before it is created. That of a job that repeats another one with its packages is the
    other's."""
    directory = directory_of(submitted, Path.cwd())
    with_diff = not (submitted.no_diff or os.environ.get(NO_DIFF, "") not in ("", "0"))
    tree = None if directory is None else _tree(directory, with_diff, notify)
    if submitted.repeats and directory is None:
        tree = _tree_of(client, submitted.repeats, notify)
    return JobOrigin(
        git=tree, client=f"trainyard {__version__}", python=platform.python_version(), rerun_of=submitted.repeats
    )


def send(client: V1Client, job: Mapping[str, Any], origin: JobOrigin, notify: Notify) -> None:
    """Record the origin of a job that was just created. A server of before this was recorded is not warned about."""
    uris = job.get("trainingInput", {}).get("packageUris", [])[:MAX_PACKAGES]
    digests = {uri: digest for uri in uris if (digest := package_digest(uri))}
    try:
        client.set_origin(str(job["jobId"]), origin.model_copy(update={"packages": digests}).model_dump(mode="json"))
    except NotFound:
        return
    except TrainyardError as error:
        notify(f"The origin of {job['jobId']} was not recorded: {error.message}")


def directory_of(submitted: Submitted, current_dir: Path) -> Path | None:
    """The directory whose repository a job comes from: that of its program or its Dockerfile, else the current one if
    its config or a package of it lies below that."""
    draft = submitted.draft
    if draft.program is not None:
        path = draft.program.path.absolute()
        return path if path.is_dir() else path.parent
    if submitted.build:
        return Path(submitted.build).expanduser().absolute()
    is_file = isinstance(submitted.config, Path) and submitted.config != STDIN
    files = [submitted.config] if isinstance(submitted.config, Path) and is_file else []
    files += [Path(package).expanduser() for package in draft.packages if "://" not in package]
    here = current_dir.resolve()
    return here if any((here / path).resolve().is_relative_to(here) for path in files) else None


def _tree(directory: Path, with_diff: bool, notify: Notify) -> GitOrigin | None:
    try:
        return git.read(directory, with_diff=with_diff)
    except GitTooSlow:
        notify(f"git took longer than {git.TIMEOUT_S:g} s: the origin of the job has no commit and no diff.")
    except GitError as error:
        notify(f"The origin of the job has no commit and no diff. {error}")
    return None


def _tree_of(client: V1Client, job: str, notify: Notify) -> GitOrigin | None:
    try:
        return JobOrigin.model_validate(client.get_origin(job)).git
    except NotFound:
        return None
    except TrainyardError as error:
        notify(f"The origin of {job} cannot be read: {error.message}")
        return None
