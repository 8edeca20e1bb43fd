"""Job of the v1 API."""

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from trainyard_protocol.states import JobState
from trainyard_server.services.jobs.training_output import whole_second
from trainyard_server.storage.db.base.models import JobRow


def v1_job(job: JobRow, output: Mapping[str, Any]) -> dict[str, Any]:
    """The job as the v1 API returns it: `trainingInput` exactly as it was sent. `output` is its `trainingOutput`."""
    answer: dict[str, Any] = {
        "jobId": job.job_id,
        "trainingInput": job.training_input,
        "createTime": whole_second(job.created_at),
    }
    if job.started_at is not None:
        answer["startTime"] = whole_second(job.started_at)
    if job.ended_at is not None:
        answer["endTime"] = whole_second(job.ended_at)
    answer["state"] = job.state.value
    if job.error_message:
        answer["errorMessage"] = job.error_message
    answer["trainingOutput"] = dict(output)
    if job.labels:
        answer["labels"] = job.labels
    answer["etag"] = etag(job)
    if job.state is JobState.QUEUED and job.position:
        answer["jobPosition"] = str(job.position)
    return answer


def with_pointer(answer: dict[str, Any]) -> dict[str, Any]:
    """The job, its errorMessage with where its log is, as in the real service."""
    if answer["state"] != JobState.FAILED:
        return answer
    where = f"`trainyard jobs stream-logs {answer['jobId']}`"
    pointer = f"To find out more about why your job exited please check the logs: {where}"
    return {**answer, "errorMessage": f"{answer['errorMessage']}\n\n{pointer}"}


def etag(job: JobRow) -> str:
    """The etag: bytes in base64, new after each change of a patchable field."""
    text = f"{job.revision or 0} {json.dumps(job.labels, sort_keys=True)}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:9]).decode()
