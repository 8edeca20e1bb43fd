"""Job-dirs that are paths of the host, the only paths that a job may name."""

from collections.abc import Sequence
from pathlib import Path

from trainyard_agent.staging.base import StagingFailed
from trainyard_protocol.states import Reason


def prepare(job_dir: str, roots: Sequence[Path]) -> Path:
    """Create the job-dir if it is missing. Returns the directory to mount, with every link resolved.

    Raises StagingFailed unless it is below one of `roots`: a job must not access the rest of the machine.
    """
    path = Path(job_dir)
    problem = ""
    if not path.is_absolute():
        problem = "it is neither a gs:// address nor an absolute path"
    elif not roots:
        problem = "this agent may mount no directory of its machine (see its option --job-dir-root)"
    elif not any(path.resolve().is_relative_to(root.resolve()) for root in roots):
        allowed = ", ".join(map(str, roots))
        problem = f"this agent may mount only directories below {allowed} (its --job-dir-root)"
    if problem:
        raise StagingFailed(Reason.START_FAILED, f"The job-dir {job_dir} cannot be used: {problem}.")
    _create(path)
    return path.resolve()


def create_default(job_dir: str) -> None:
    """Create the directory that the service chose for a job, for its user alone. "" and gs://: nothing.

    Raises StagingFailed.
    """
    if job_dir and "://" not in job_dir:
        _create(Path(job_dir).parent)
        _create(Path(job_dir), 0o700)


def _create(path: Path, mode: int = 0o777) -> None:
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        message = f"The job-dir {path} cannot be created: {error.strerror}."
        raise StagingFailed(Reason.START_FAILED, message) from error
