"""Mounts of job-dirs beside those of running jobs."""

from pathlib import Path

import pytest

from trainyard_agent.engines.docker.job_dir_mounts import require_in_place, through
from trainyard_agent.runtimes.base import Launch, StartFailed
from trainyard_protocol.states import Reason

TASK = "master-replica-0"


def launch(source: str, target: str) -> Launch:
    return Launch(TASK, (), {}, (), 0, job_dir=target, job_dir_source=source)


def test_job_dir_that_came_into_another_jobs_is_not_started(tmp_path: Path) -> None:
    job_dir = tmp_path / "sweep" / "1"
    job_dir.mkdir(parents=True)
    require_in_place(TASK, str(job_dir), ["", str(job_dir), str(job_dir / "a")])
    with pytest.raises(StartFailed, match="another job has mounted meanwhile") as failure:
        require_in_place(TASK, str(job_dir), [str(tmp_path)])
    assert failure.value.reason is Reason.HOST_FAILED
    with pytest.raises(StartFailed, match="is a link into /real"):
        through(launch("/real/data/x", "/home/link/x"), ["/real"])
