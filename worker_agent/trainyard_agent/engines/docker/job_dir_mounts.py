"""Mounts of job-dirs that no container can replace.

A job that has the parent of a directory mounted can put a link in its place, which the engine would follow. While such
a job runs, that parent is mounted for others too: they find their job-dir below it, inside.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePosixPath

from trainyard_agent.runtimes.base import Launch, StartFailed
from trainyard_protocol.states import Reason


def through(launch: Launch, mounted: Iterable[str]) -> Launch:
    """The launch with the outermost of the `mounted` directories that its job-dir is in. Raises StartFailed."""
    source, target = PurePosixPath(launch.job_dir_source), PurePosixPath(launch.job_dir)
    holder = outer(launch.job_dir_source, mounted)
    if not holder:
        return launch
    below = source.relative_to(holder).parts
    if target.parts[-len(below) :] != below:
        message = f"Its job-dir {target} is a link into {holder}, which another job has mounted."
        raise StartFailed(launch.task, message)
    return replace(launch, job_dir=str(target.parents[len(below) - 1]), job_dir_source=holder)


def outer(source: str, mounted: Iterable[str]) -> str:
    """The outermost of the `mounted` directories that hold the directory `source`; "" if none does."""
    path = PurePosixPath(source)
    holders = [other for other in mounted if other and other != source and path.is_relative_to(other)]
    return min(holders, key=len, default="") if source else ""


def require_in_place(task: str, source: str, mounted: Iterable[str]) -> None:
    """Check that a directory is mounted, and no other, when its container starts now. Raises StartFailed."""
    if source and os.path.realpath(source) != source:
        # It was none when the run was prepared. The engine would follow it, anywhere.
        raise StartFailed(task, f"The job-dir {source} was replaced by a link.")
    if holder := outer(source, mounted):
        message = f"The job-dir {source} is in {holder}, which another job has mounted meanwhile."
        raise StartFailed(task, message, Reason.HOST_FAILED)
