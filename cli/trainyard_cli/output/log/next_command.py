"""The command that helps next after a job has failed."""

from collections.abc import Mapping
from typing import Any

from trainyard_cli.client import Client
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.job.config.programs import first_like
from trainyard_protocol.states import JobState

_JOBS = 20
"""Newest jobs that are looked at for one with the same program."""


def next_command(client: Client, detail: JobDetail) -> list[str]:
    """A line with the comparison with the last job of this program that succeeded, or else with the rerun. Nothing for
    a job that has not failed, and for a study and its trials, which have other next steps."""
    if detail.state is not JobState.FAILED or detail.is_study or detail.study:
        return []
    job, flags = str(detail.job["jobId"]), client.flags
    try:
        succeeded = _last_success(client, detail.job)
    except TrainyardError as error:
        return [_rerun(job, flags), f"  (Whether a job like it has succeeded is not known: {error.message})"]
    if not succeeded:
        return [_rerun(job, flags)]
    return [f"To compare it with the last one that succeeded:  jobs diff {job} {succeeded}{flags}"]


def _rerun(job: str, flags: str) -> str:
    return f"To run it again:  jobs rerun {job}{flags}"


def _last_success(client: Client, job: Mapping[str, Any]) -> str:
    """The newest job of the project with the same program that has succeeded; "" without one."""
    jobs = client.list_jobs("state:SUCCEEDED", limit=_JOBS)
    return first_like(job.get("trainingInput") or {}, ((str(other["jobId"]), other["trainingInput"]) for other in jobs))
