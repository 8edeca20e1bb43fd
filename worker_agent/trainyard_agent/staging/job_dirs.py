"""Job-dirs that are paths of the host: the one place that a job may name."""

from collections.abc import Sequence
from pathlib import Path

from trainyard_agent.staging.base import StagingFailed
from trainyard_protocol.states import Reason


def prepared(job_dir: str, roots: Sequence[Path]) -> Path:
    """The directory to mount for it, made where it is missing, with every link followed.

    Raises StagingFailed unless it lies below one of `roots`: a job must not reach the rest of the machine.
    """
    path = Path(job_dir)
    trouble = ""
    if not path.is_absolute():
        trouble = "it is neither a gs:// address nor an absolute path"
    elif not roots:
        trouble = "this agent mounts no directory of its machine (--job-dir-root names those that it may)"
    elif not any(path.resolve().is_relative_to(root.resolve()) for root in roots):
        allowed = ", ".join(map(str, roots))
        trouble = f"this agent may mount only what lies below {allowed} (its --job-dir-root)"
    if trouble:
        raise StagingFailed(Reason.START_FAILED, f"The job-dir {job_dir} cannot be used: {trouble}.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"The job-dir {job_dir} cannot be made: {error.strerror}."
        raise StagingFailed(Reason.START_FAILED, message) from error
    return path.resolve()
